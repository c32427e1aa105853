# SPDX-License-Identifier: Apache-2.0
"""torch.distributed.pipelining over smdist's send and recv: the gradients of one process."""

import pytest
import torch
from torch import nn
from torch.distributed.pipelining import (
    PipelineStage,
    Schedule1F1B,
    ScheduleGPipe,
    ScheduleInterleaved1F1B,
    ScheduleInterleavedZeroBubble,
    ScheduleZBVZeroBubble,
)
from training import WIDTH, are_close

ROWS, MICROBATCHES = 24, 6
SINGLE = {"gpipe": ScheduleGPipe, "1f1b": Schedule1F1B}
SEVERAL = {
    "interleaved 1f1b": ScheduleInterleaved1F1B,
    "interleaved zero bubble": ScheduleInterleavedZeroBubble,
    "zero bubble in a v": ScheduleZBVZeroBubble,
}


def layer(number):
    torch.manual_seed(number)
    return nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh())


def rows_and_targets():
    generator = torch.Generator().manual_seed(7)
    return torch.randn(2, ROWS, WIDTH, generator=generator)


def by_one_process(stages):
    """The loss and each stage's gradients over the whole batch."""
    model = nn.Sequential(*[layer(number) for number in range(stages)])
    rows, targets = rows_and_targets()
    loss = nn.functional.mse_loss(model(rows), targets)
    loss.backward()
    return loss.detach(), [[p.grad for p in stage.parameters()] for stage in model]


def step(schedule, is_first, is_last):
    """One step; what the last stage saw as losses."""
    rows, targets = rows_and_targets()
    losses = []
    inputs = [rows] if is_first else []
    schedule.step(*inputs, target=targets if is_last else None, losses=losses)
    return torch.stack(losses).mean().detach() if losses else None


def one_stage_per_rank(rank, size, name):
    module = layer(rank)
    stage = PipelineStage(module, rank, size, torch.device("cpu"))
    schedule = SINGLE[name](stage, MICROBATCHES, loss_fn=nn.functional.mse_loss)
    loss = step(schedule, rank == 0, rank == size - 1)
    return loss, [parameter.grad for parameter in module.parameters()]


@pytest.mark.parametrize("size", [2, 3, 4])
@pytest.mark.parametrize("name", SINGLE)
def test_one_stage_per_rank(world, name, size):
    """Activations go down and gradients up, between neighbours."""
    loss, gradients = by_one_process(size)
    answers = world.run(one_stage_per_rank, name, size=size)

    assert torch.allclose(loss, answers[-1][0])
    for expected, (_, rank) in zip(gradients, answers, strict=True):
        assert are_close(expected, rank)


def stages_of(rank, size, name):
    """Two for each rank: round and round, or down and up again."""
    last = 2 * size - 1
    return [rank, last - rank] if "v" in name.split() else [rank, rank + size]


def two_stages_per_rank(rank, size, name):
    numbers = stages_of(rank, size, name)
    modules = [layer(number) for number in numbers]
    stages = [
        PipelineStage(module, number, 2 * size, torch.device("cpu"))
        for module, number in zip(modules, numbers, strict=True)
    ]
    schedule = SEVERAL[name](stages, MICROBATCHES, loss_fn=nn.functional.mse_loss)
    loss = step(schedule, rank == 0, 2 * size - 1 in numbers)
    return loss, [[p.grad for p in module.parameters()] for module in modules]


@pytest.mark.parametrize("name", SEVERAL)
def test_two_stages_per_rank(world, name):
    """Both neighbours are the same rank, and sends cross."""
    size = 2
    loss, gradients = by_one_process(2 * size)
    answers = world.run(two_stages_per_rank, name, size=size)
    (seen,) = [answer for answer, _ in answers if answer is not None]

    assert torch.allclose(loss, seen)
    for rank, (_, stages) in enumerate(answers):
        for number, stage in zip(stages_of(rank, size, name), stages, strict=True):
            assert are_close(gradients[number], stage)
