# SPDX-License-Identifier: Apache-2.0
"""A failure is reported on every rank soon, with the name of the rank that caused it."""

import os
import signal
import time
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist
from engine_faults import fault_fields

from sagemaker_dist.errors import OptionError, OptionErrors
from smdist.dataparallel.rendezvous.engine_shutdown import reason_of
from smdist.dataparallel.torch import monitored_barrier


def refused(rank, size, tensor):
    backend = dist.group.WORLD._get_backend(torch.device("cpu"))
    backend.allreduce([tensor])


@pytest.mark.parametrize(
    ("tensor", "text"),
    [
        (torch.empty(3, device="meta"), "Move it to the CPU or to a GPU"),
        (torch.zeros(3, dtype=torch.uint16), "Convert it to float32"),
    ],
)
def test_tensors_that_cannot_travel_are_refused_with_the_hint(world, tensor, text):
    """A device without memory, a dtype without arithmetic."""
    ((ok, said),) = world.outcomes(refused, tensor, size=1)

    assert not ok
    assert text in said


def broadcast_sparse(rank, size):
    backend = dist.group.WORLD._get_backend(torch.device("cpu"))
    backend.broadcast(torch.eye(3).to_sparse(), 0)


def test_sparse_tensors_are_refused_but_for_sums(world):
    ((ok, said),) = world.outcomes(broadcast_sparse, size=1)

    assert not ok
    assert "to_dense()" in said


def disagree(rank, size):
    with pytest.raises((ValueError, dist.DistBackendError)) as caught:
        dist.all_reduce(torch.ones(5 if rank == 1 else 4))
    return str(caught.value), fault_fields("kind", "operation")


def test_ranks_that_disagree_all_hear_of_it(world):
    """A different length on one rank is an error on every rank that names it."""
    for said, fields in world.run(disagree, size=3, deadline=20):
        assert "rank 1 " in said
        assert ("usage", "all_reduce") == fields


def die(rank, size):
    dist.all_reduce(torch.ones(1))
    if rank == 2:
        os.kill(os.getpid(), signal.SIGKILL)
    start = time.monotonic()
    try:
        dist.all_reduce(torch.ones(1_000_000))
    except dist.DistBackendError:
        return fault_fields(), time.monotonic() - start
    return "no error", 0


def test_a_killed_rank_is_named_on_every_other(world):
    """kill -9: the others' pending operations end at once, not after `silence_seconds`."""
    outcomes = world.outcomes(die, deadline=20)

    assert not outcomes[2][0]
    for rank in (0, 1, 3):
        ok, (fields, seconds) = outcomes[rank]
        assert ok
        assert ("lost", 2, "all_reduce") == fields
        assert seconds < 5


def refuse_options(rank, size):
    with pytest.raises(OptionError) as caught:
        dist.new_group([0], pg_options=object())
    assert ("pg_options",) == caught.value.about


def test_options_that_would_do_nothing_are_refused(world):
    """pg_options for a backend that has none."""
    world.run(refuse_options, size=1)


def wait_for_nobody(rank, size):
    group = dist.new_group(list(range(size)), timeout=timedelta(seconds=1))
    if rank == 1:
        time.sleep(3)
        return "slept"
    try:
        dist.all_reduce(torch.ones(1), group=group)
    except dist.DistBackendError:
        return fault_fields()
    return "no error"


def test_a_missing_rank_is_named_after_the_timeout(world):
    """A collective that one rank never calls ends at its deadline."""
    first, second, third = world.run(wait_for_nobody, size=3, deadline=20)

    assert "slept" == second
    assert ("timeout", 1, "all_reduce") == first == third


def wait_in_a_group_of_an_impatient_world(rank, size, store):
    dist.destroy_process_group()
    dist.init_process_group(
        "smdist",
        store=dist.FileStore(store, size),
        rank=rank,
        world_size=size,
        timeout=timedelta(seconds=1),
    )
    group = dist.new_group(list(range(size)))
    if rank == 1:
        time.sleep(3)
        return "slept"
    try:
        dist.all_reduce(torch.ones(1), group=group)
    except dist.DistBackendError as error:
        return str(error), fault_fields()
    return "no error", None


def test_a_group_without_a_timeout_waits_as_long_as_the_default_group(world, tmp_path):
    """Its deadline is that of init_process_group, not torch's half an hour."""
    store = str(tmp_path / "store")
    (said, fields), second = world.run(
        wait_in_a_group_of_an_impatient_world, store, size=2, deadline=20
    )

    assert "slept" == second
    assert ("timeout", 1, "all_reduce") == fields
    assert " 1 s " in said


def wait_at_barrier(rank, size):
    if rank in (1, 2):
        time.sleep(2)
        return "slept"
    try:
        monitored_barrier(timeout=timedelta(milliseconds=500))
    except dist.DistBackendError as error:
        return str(error), *fault_fields("kind")
    return "no error", ""


def test_a_monitored_barrier_names_all_who_did_not_come(world):
    """Two of four ranks sleep."""
    first, _, _, last = world.run(wait_at_barrier, deadline=20)

    for said, kind in (first, last):
        assert "timeout" == kind
        assert "rank 1" in said
        assert "rank 2" in said
        assert "500 ms" in said


def pass_barrier(rank, size):
    monitored_barrier()
    monitored_barrier(dist.new_group([0, 1]), timeout=timedelta(seconds=5))


def test_a_monitored_barrier_lets_everybody_through(world):
    world.run(pass_barrier, size=2)


def send_too_much(rank, size):
    tensor = torch.ones(4 + rank)
    if rank == 0:
        dist.send(tensor, dst=1)
    else:
        dist.recv(tensor, src=0)


def test_messages_that_do_not_fit_name_both_sides(world):
    for ok, said in world.outcomes(send_too_much, size=2, deadline=20):
        assert not ok
        assert "called send(float32, 4)" in said
        assert "called receive(float32, 5)" in said


def test_all_faults_of_a_request_are_in_the_reason_why_a_rank_ends():
    """On one line, which is all that other ranks and the log of the job keep."""
    faults = (OptionError("a is 1", "it is odd", "Pass 2"), OptionError("b", "no", "Leave it"))

    assert (
        "rank 1 on vm raised OptionErrors: 2 faults in this request:"
        " 1. a is 1: it is odd. Pass 2. 2. b: no. Leave it."
    ) == reason_of("rank 1 on vm", OptionErrors(faults))


def test_the_reason_why_a_rank_ends_leaves_out_what_tensorflow_writes_around_it():
    """Else the place in the graph is all that fits."""
    calls = '  File "/opt/ml/code/net.py", line 8, in call\n\n' * 50
    text = (
        f"Graph execution error:\n\nDetected at node a defined at (most recent call last):\n{calls}"
    )

    assert "rank 1 on vm raised ValueError: 7 is not in [0, 3)" == reason_of(
        "rank 1 on vm", ValueError(f"{text}7 is not in [0, 3)\n\t [[{{{{node a}}}}]] [Op:step]")
    )
