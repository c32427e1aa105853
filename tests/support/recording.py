# SPDX-License-Identifier: Apache-2.0
"""Recorded steps of a pipeline of sleeping stages, for tests and benchmarks."""

from __future__ import annotations

import torch
from sleeping import costs, sleepers
from splitting import Pipeline, Split

from smdist.modelparallel.core.simulate import Timeline, simulate
from smdist.modelparallel.torch.executor.run_trace import Recorder, Run, gather


def record(
    rank: int, size: int, schedule: str, stages: int, microbatches: int, seconds: float, steps: int
) -> tuple[Run, Timeline]:
    """Record steps of a sleeping pipeline after one warm-up step; return them and a simulated step.

    Args:
        stages: Number of stages on each rank.
        seconds: Duration of each of F, I and W of one microbatch, on all stages of a rank.
    """
    torch.set_num_threads(1)
    times = [(seconds / stages,) * 3] * (size * stages)
    shape = Pipeline(
        schedule=schedule, num_ranks=size, num_microbatches=microbatches, virtual_stages=stages
    )
    recorder = Recorder(rank=rank, pipeline_rank=rank)
    split = Split(sleepers(times, rows=microbatches), shape, on_event=recorder)
    split.step()
    recorder.clear()
    for _ in range(steps):
        split.step()
    run = gather(recorder, schedule=split.schedule, edges=split.placement.edges)
    return run, simulate(split.schedule, costs(times, splits=split.schedule.splits_backward))
