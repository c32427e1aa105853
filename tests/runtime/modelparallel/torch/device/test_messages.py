# SPDX-License-Identifier: Apache-2.0
"""Values and gradients travel from device to device, while the device computes."""

import os
import threading
import time
from datetime import timedelta

import accelerator
import pytest
import torch
import torch.distributed as dist
import zoo
from smp_nets import net
from splitting import Pipeline, Split, plain_step
from test_device import in_order_group

from smdist.dataparallel.rendezvous.engine_shutdown import abort
from smdist.dataparallel.torch.host_communicators import BY_DEVICE, HostCommunicators
from smdist.modelparallel.core.placement import Tie
from smdist.modelparallel.torch.executor.device_transfers import AHEAD, device_transfers
from smdist.modelparallel.torch.replicas.owned_params import OwnedParam
from smdist.modelparallel.torch.replicas.replicas import TiedParams
from smdist.modelparallel.torch.session import pair_communicators
from smdist.modelparallel.torch.session.device_p2p import DeviceP2P

SLOTS = {"staging_slot_bytes": 4096, "staging_slots": 3}


def step_in_order(rank, size, pipeline):
    """Run a step over a backend that ignores tags, and that waits when it connects two ranks."""
    in_order_group.register()
    pair_communicators.COMMUNICATORS[in_order_group.BACKEND] = in_order_group.communicator
    group = dist.new_group(backend=in_order_group.BACKEND)
    worst, transfers = worst_difference(pipeline, group)
    return worst, transfers.is_ordered


def worst_difference(pipeline, group):
    """Run a step; return how far gradients are from one process's, and the rank's transfers."""

    def specimen():
        model = net().to("testdev")
        return zoo.Specimen(model=model, batch=(torch.arange(96.0, device="testdev").view(12, 8),))

    expected = plain_step(specimen(), pipeline.num_microbatches, loss=loss_of)
    split = Split(specimen(), pipeline, group)
    found = split.step(loss=loss_of)
    worst = max(
        (each - expected.gradients[name]).abs().max().item()
        for name, each in found.gradients.items()
    )
    return worst, split.executor._transfers


def loss_of(output):
    return output["logits"].square().mean()


@accelerator.on_the_test_device("the backend that ignores tags knows this device alone")
@pytest.mark.parametrize(
    "pipeline",
    [
        # rank 1 needs messages in another order than rank 0 sends them
        Pipeline(schedule="zero_bubble_v", virtual_stages=2, num_microbatches=6),
        # rank 0 posts its first receive before it sends what rank 1 needs for that message
        Pipeline(schedule="simple", num_microbatches=6),
    ],
    ids=lambda pipeline: pipeline.schedule,
)
def test_a_backend_without_tags_receives_in_the_order_of_sending(pipelines, pipeline):
    for worst, is_ordered in pipelines.run_ranks(step_in_order, pipeline, size=2):
        assert is_ordered
        assert worst <= 1e-6


def connect_in_pairs(fault=""):
    """Let ranks of one host be connected by a stand-in for NCCL, whose connection may fail."""

    def create(store, rank, size, timeout, device, _):
        if fault:
            raise RuntimeError(fault)
        return in_order_group.communicator(store, rank, size, timeout)

    BY_DEVICE["testdev"] = HostCommunicators(
        name="a stand-in", fault=lambda _: "", identity=lambda _: str(os.getpid()), create=create
    )


def step_over_hosts(rank, size, fault):
    """Run a step on a host of two ranks and one of one rank; return to whom each is connected."""

    connect_in_pairs(fault)
    worst, transfers = worst_difference(Pipeline(num_ranks=size), dist.group.WORLD)
    return worst, [peer for peer in range(size) if transfers._p2p._pairs.find(rank, peer)]


@accelerator.on_the_test_device("the backend that ignores tags knows this device alone")
@pytest.mark.parametrize(
    ("option", "fault", "expected"),
    [
        ("auto", "", [[1], [0], []]),
        ("staged", "", [[], [], []]),
        ("auto", "no shared memory", [[], [], []]),
    ],
)
def test_devices_of_one_host_are_connected_and_hosts_send_through_the_engine(
    pipelines, option, fault, expected
):
    found = pipelines.run_ranks(
        step_over_hosts,
        fault,
        size=3,
        staging=SLOTS,
        hosts="aab",
        SMDIST_GPU_COLLECTIVES=option,
    )

    assert expected == [peers for _, peers in found]
    assert max(worst for worst, _ in found) <= 1e-6


def wait_for_a_rank_that_fails(rank, size):
    """Rank 1 fails; rank 0 waits for its message in a call that sees no fault of the engine."""
    connect_in_pairs()
    p2p = DeviceP2P(dist.group.WORLD, torch.device(accelerator.NAME), "test")
    p2p.connect([(1, 0)])
    store = dist.distributed_c10d._get_default_store()
    if rank == 1:
        abort("rank 1 raised ValueError")
        store.wait(["end"], timedelta(seconds=40))  # its connections stay open
        return None
    buffer = torch.empty(4, dtype=torch.uint8, device=accelerator.NAME)
    begin = time.monotonic()
    with pytest.raises(RuntimeError):
        p2p.irecv(buffer, 1, 0).wait()
    seconds = time.monotonic() - begin
    store.set("end", "")
    return seconds


@accelerator.on_the_test_device("the backend that ignores tags knows this device alone")
def test_a_fault_of_the_engine_ends_the_transfers_between_devices(pipelines):
    seconds, _ = pipelines.run_ranks(wait_for_a_rank_that_fails, size=2, staging=SLOTS, hosts="aa")

    assert seconds < 10


def fail_to_connect(rank, size):
    """Connect rank 0 with rank 1, which fails, and rank 1 with rank 2; return the error."""
    in_order_group.register()

    def make(store, *rest):
        if rank < 2 and not made:
            made.append(None)
            raise RuntimeError("no memory")
        return in_order_group.communicator(store, *rest)

    made = []
    pair_communicators.COMMUNICATORS[in_order_group.BACKEND] = make
    p2p = DeviceP2P(
        dist.new_group(backend=in_order_group.BACKEND), torch.device(accelerator.NAME), "test"
    )
    try:
        p2p.connect([(0, 1), (1, 2)])
    except dist.DistBackendError as error:
        return type(error)
    return None


@accelerator.on_the_test_device("the backend that ignores tags knows this device alone")
def test_two_ranks_that_cannot_be_connected_keep_no_other_waiting(pipelines):
    error = dist.DistBackendError

    assert [error, error, None] == pipelines.run_ranks(fail_to_connect, size=3)


def sum_ties(rank, size):
    """Sum a tied parameter over three ranks, with a backend that waits when it connects two."""
    in_order_group.register()
    pair_communicators.COMMUNICATORS[in_order_group.BACKEND] = in_order_group.communicator
    group = dist.new_group(backend=in_order_group.BACKEND)
    parameter = torch.nn.Parameter(torch.ones(5, device="testdev"))
    parameter.grad = torch.full_like(parameter, 10.0**rank)
    held = [OwnedParam(name="w", parameter=parameter, stages=frozenset((rank,)))]
    ties = TiedParams([Tie(parameter="w", stages=(0, 1, 2))], (0, 1, 2), held, group)
    ties.connect()
    ties.finish()
    return parameter.grad.tolist()


@accelerator.on_the_test_device("the backend that ignores tags knows this device alone")
def test_three_ranks_sum_a_tied_parameter(pipelines):
    assert [[111.0] * 5] * 3 == pipelines.run_ranks(sum_ties, size=3)


def run_ahead(rank, size):
    """Queue actions on a held device; return whether the host waits after each, and at the end."""
    transfers = device_transfers(dist.group.WORLD)
    waiting = []
    with accelerator.held_stream():
        for _ in range(AHEAD + 1):
            host = threading.Thread(target=transfers.end_action)
            host.start()
            host.join(0.3 if len(waiting) == AHEAD else 10)
            waiting.append(host.is_alive())
    host.join(10)
    return [*waiting, host.is_alive()]


def test_a_host_that_is_far_ahead_of_its_device_waits(pipelines):
    """So memory does not grow with the number of microbatches."""
    (answer,) = pipelines.run_ranks(run_ahead, size=1, staging=SLOTS)

    assert [*[False] * AHEAD, True, False] == answer


def receive_in_time(rank, size):
    """Receive on rank 1 while its device is held; return whether the data came, and was right."""
    transfers = device_transfers(dist.group.WORLD)
    if rank == 0:
        transfers.wait_sent(transfers.send(torch.arange(5000.0).to(accelerator.NAME), 1, 7))
        return None
    until = time.monotonic() + 30
    with accelerator.held_stream():
        busy = torch.ones(5000, device=accelerator.NAME)
        buffer = transfers.buffer((5000,), torch.float32)
        work = transfers.receive(buffer, 0, 7)
        while not work.is_completed() and time.monotonic() < until:
            time.sleep(0.01)
        has_come = work.is_completed()
        transfers.join(work, buffer)
        busy += buffer
        del buffer
    return (
        has_come,
        torch.equal(busy.cpu(), torch.arange(5000.0) + 1),
        accelerator.take_stale_uses(),
    )


def test_data_arrives_while_the_device_computes(pipelines):
    answer = pipelines.run_ranks(receive_in_time, size=2, staging=SLOTS)[1]

    assert (True, True, accelerator.NEVER) == answer
