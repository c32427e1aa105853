# SPDX-License-Identifier: Apache-2.0
"""A failure on one rank's device ends the step on all ranks, and all say where it was."""

import os
import signal
import time

import accelerator
import pytest
import test_device
import torch
import zoo
from smp_nets import net
from splitting import Pipeline, Split

from smdist.modelparallel.torch.executor import StepError

SLOTS = {"staging_slot_bytes": 4096, "staging_slots": 3}
RANKS, SECONDS = 3, 20
CULPRIT = 1


def loss_of(output):
    return output["logits"].square().mean()


def fail(module, args):
    raise ValueError("2 plus 2 is 5")


def exhaust(module, args):
    """Leave the device no memory."""
    torch.accelerator.empty_cache()
    accelerator.set_memory_limit(torch.accelerator.memory_reserved())
    torch.empty(1 << 24, device=accelerator.NAME)


def break_copy(module, args):
    """Let the next copy to the host fail, which is that of the value for the next stage."""
    test_device.fail_copy(1, test_device.COPY_TO_HOST)


def kill(module, args):
    """End this rank while its device and the other ranks work."""
    os.kill(os.getpid(), signal.SIGKILL)


TROUBLES = {"stage": fail, "memory": exhaust, "copy": break_copy, "killed": kill}


def failing_step(rank, size, trouble):
    """Fail in the second microbatch of rank 1; return the error's fields, and how long it took."""
    model = net().to(accelerator.NAME)
    batch = torch.ones(16, 8, device=accelerator.NAME)
    split = Split(zoo.Specimen(model=model, batch=(batch,)), Pipeline(num_ranks=size))
    split.step(loss=loss_of)
    calls = []

    def once(module, args):
        calls.append(None)
        if len(calls) == 2:
            TROUBLES[trouble](module, args)

    if rank == CULPRIT:
        unit = split.stages[rank].route.units[0]
        split.stages[rank].unit(unit).register_forward_pre_hook(once)

    def steps():
        for _ in range(2):  # a copy may fail after the host has queued the step
            split.step(loss=loss_of)

    begin = time.monotonic()
    with pytest.raises(StepError) as raised:
        steps()
    seconds = time.monotonic() - begin
    accelerator.clear_errors()
    torch.accelerator.synchronize()
    return raised.value.fault, seconds


@pytest.mark.parametrize(
    ("trouble", "why"),
    [
        ("stage", "ValueError: 2 plus 2 is 5"),
        ("memory", "OutOfMemoryError: "),
        pytest.param(
            "copy",
            "injected fault",
            marks=accelerator.on_the_test_device("copies of a GPU cannot be made to fail"),
        ),
    ],
)
def test_all_ranks_raise_the_same_error(pipelines, trouble, why):
    found = pipelines.run_ranks(failing_step, trouble, size=RANKS, staging=SLOTS)
    faults = [fault for fault, _ in found]

    assert all(why in fault.why for fault in faults), faults
    assert max(seconds for _, seconds in found) < SECONDS
    if trouble != "copy":
        assert 1 == len(set(faults))
        assert (CULPRIT, f"{CULPRIT}F1") == (faults[0].rank, faults[0].action)


def test_a_killed_rank_is_an_error_on_the_others(pipelines):
    ranks = pipelines.outcomes(failing_step, "killed", size=RANKS, staging=SLOTS, deadline=40)

    assert (False, "died with exit code -9") == ranks[CULPRIT]
    for done, answer in (ranks[0], ranks[2]):
        assert done, answer
        assert f"rank {CULPRIT}" in answer[0].why
        assert answer[1] < SECONDS
