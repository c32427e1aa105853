# SPDX-License-Identifier: Apache-2.0
"""torch.distributed.pipelining with stages on a device has the gradients of one process."""

import accelerator
import pytest
import torch
from torch import nn
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleInterleavedZeroBubble

SLOTS = {"staging_slot_bytes": 4096, "staging_slots": 3}
WIDTH, ROWS, MICROBATCHES = 16, 12, 4


def layer(number):
    torch.manual_seed(number)
    return nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh())


def rows_and_targets():
    return torch.randn(2, ROWS, WIDTH, generator=torch.Generator().manual_seed(7))


def by_one_process(stages):
    """The loss and each stage's gradients over the whole batch, on the CPU."""
    model = nn.Sequential(*[layer(number) for number in range(stages)])
    rows, targets = rows_and_targets()
    loss = nn.functional.mse_loss(model(rows), targets)
    loss.backward()
    return loss.item(), [[p.grad for p in stage.parameters()] for stage in model]


def on_device(rank, size, schedule, numbers):
    """A step of the stages of this rank: the loss, where it is known, and their gradients."""
    accelerator.set_seed(rank)
    device = torch.device(accelerator.NAME, 0)
    last = size * len(numbers) - 1
    modules = [layer(number).to(device) for number in numbers]
    stages = [
        PipelineStage(module, number, last + 1, device)
        for module, number in zip(modules, numbers, strict=True)
    ]
    rows, targets = (each.to(device) for each in rows_and_targets())
    losses = []
    steps = schedule(
        stages if len(stages) > 1 else stages[0], MICROBATCHES, loss_fn=nn.functional.mse_loss
    )
    inputs = [rows] if 0 in numbers else []
    steps.step(*inputs, target=targets if last in numbers else None, losses=losses)
    gradients = [[p.grad.cpu() for p in module.parameters()] for module in modules]
    loss = torch.stack(losses).mean().item() if losses else None
    return loss, gradients, accelerator.take_stale_uses()


SCHEDULES = ((Schedule1F1B, 1), (ScheduleInterleavedZeroBubble, 2))  # stages of a rank


def each_schedule(rank, size):
    return [
        on_device(rank, size, schedule, range(rank, size * stages, size))
        for schedule, stages in SCHEDULES
    ]


def test_stages_on_a_device(device_processes):
    ranks = device_processes.run_ranks(each_schedule, size=2, staging=SLOTS)
    for (_, stages), answers in zip(SCHEDULES, zip(*ranks, strict=True), strict=True):
        loss, gradients = by_one_process(2 * stages)

        assert [loss] == [
            pytest.approx(seen, abs=accelerator.ROUNDING)
            for seen, _, _ in answers
            if seen is not None
        ]
        for rank, (_, found, stale) in enumerate(answers):
            torch.testing.assert_close(found, gradients[rank::2], rtol=0, atol=accelerator.ROUNDING)
            assert accelerator.NEVER == stale
