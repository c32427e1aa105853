# SPDX-License-Identifier: Apache-2.0
"""Looped BFS: GPipe with several stages a rank."""

from __future__ import annotations

from smdist.modelparallel.core.schedule.actions import Action, Do
from smdist.modelparallel.core.schedule.blocks import run_of
from smdist.modelparallel.core.schedule.schedule_shape import Shape


def looped_bfs(shape: Shape, rank: int) -> list[Action]:
    """Order all microbatches through one stage, then all through the next; backwards in reverse.

    rank 0 (0 2)  F0 F1 F2 f0 f1 f2          b2=== b1=== b0=== B2=== B1=== B0===
    rank 1 (1 3)     F0 F1 F2 f0 f1 f2 b2=== b1=== b0=== B2=== B1=== B0===

    All forwards of a stage follow each other, and so do all backwards, so sharded parameters are
    gathered only twice a step. The rank holds all microbatches of all its stages.
    """
    stages = range(rank, shape.num_stages, shape.num_ranks)
    microbatches = range(shape.num_microbatches)
    order = [action for stage in stages for action in run_of(Do.F, stage, microbatches)]
    for stage in reversed(stages):
        order += run_of(Do.B, stage, reversed(microbatches))
    return order
