# SPDX-License-Identifier: Apache-2.0
"""A failure on one rank's device ends the step on all ranks, and all say where it was."""

import time

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
    torch.testdev.empty_cache()
    test_device.set_memory_limit(torch.testdev.memory_reserved())
    torch.empty(1 << 24, device="testdev")


def break_copy(module, args):
    """Let the next copy to the host fail, which is that of the value for the next stage."""
    test_device.fail_copy(1, test_device.COPY_TO_HOST)


TROUBLES = {"stage": fail, "memory": exhaust, "copy": break_copy}


def failing_step(rank, size, trouble):
    """Fail in the second microbatch of rank 1; return the error's fields, and how long it took."""
    model = net().to("testdev")
    batch = torch.ones(16, 8, device="testdev")
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
    test_device.clear_errors()
    torch.accelerator.synchronize()
    return raised.value.fault, seconds


@pytest.mark.parametrize(
    ("trouble", "why"),
    [
        ("stage", "ValueError: 2 plus 2 is 5"),
        ("memory", "OutOfMemoryError: "),
        ("copy", "injected fault"),
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
