# SPDX-License-Identifier: Apache-2.0
"""Values and gradients travel from device to device, while the device computes."""

import threading
import time

import accelerator
import torch
import torch.distributed as dist
import zoo
from smp_nets import net
from splitting import Pipeline, Split, plain_step
from test_device import in_order_group

from smdist.modelparallel.torch.executor.device_transfers import AHEAD, device_transfers
from smdist.modelparallel.torch.session import device_p2p

SLOTS = {"staging_slot_bytes": 4096, "staging_slots": 3}


def crossing_step(rank, size):
    """Run a schedule of which rank 1 needs messages in another order than rank 0 sends them."""
    in_order_group.register()
    device_p2p.COMMUNICATORS[in_order_group.BACKEND] = in_order_group.communicator
    group = dist.new_group(backend=in_order_group.BACKEND)
    pipeline = Pipeline(schedule="zero_bubble_v", virtual_stages=2, num_microbatches=6)

    def specimen():
        model = net().to("testdev")
        return zoo.Specimen(model=model, batch=(torch.arange(96.0, device="testdev").view(12, 8),))

    expected = plain_step(specimen(), 6, loss=loss_of)
    split = Split(specimen(), pipeline, group)
    found = split.step(loss=loss_of)
    worst = max(
        (each - expected.gradients[name]).abs().max().item()
        for name, each in found.gradients.items()
    )
    return worst, split.executor._transfers.is_ordered


def loss_of(output):
    return output["logits"].square().mean()


@accelerator.on_the_test_device("the backend that ignores tags knows this device alone")
def test_a_backend_without_tags_receives_in_the_order_of_sending(pipelines):
    for worst, is_ordered in pipelines.run_ranks(crossing_step, size=2):
        assert is_ordered
        assert worst <= 1e-6


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
