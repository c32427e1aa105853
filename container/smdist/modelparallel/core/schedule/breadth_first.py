# SPDX-License-Identifier: Apache-2.0
"""Looped BFS schedule (breadth-first pipeline): GPipe with several stages on each rank."""

from __future__ import annotations

from smdist.modelparallel.core.schedule.actions import Action, Do
from smdist.modelparallel.core.schedule.blocks import actions_of
from smdist.modelparallel.core.schedule.schedule_shape import Shape


def looped_bfs(shape: Shape, rank: int) -> list[Action]:
    """Return a rank's actions: all forwards of its first stage, then all of its next stage, ...

    Backwards follow in reverse order. Here each rank has two stages (in brackets), and actions of
    the second one have small letters:

    rank 0 (0 2)  F0 F1 F2 f0 f1 f2          b2=== b1=== b0=== B2=== B1=== B0===
    rank 1 (1 3)     F0 F1 F2 f0 f1 f2 b2=== b1=== b0=== B2=== B1=== B0===

    All forwards of a stage follow each other, and so do all backwards. So sharded parameters need
    only two all-gathers in a step. The rank holds all microbatches of all its stages.
    """
    stages = range(rank, shape.num_stages, shape.num_ranks)
    microbatches = range(shape.num_microbatches)
    order = [action for stage in stages for action in actions_of(Do.F, stage, microbatches)]
    for stage in reversed(stages):
        order += actions_of(Do.B, stage, reversed(microbatches))
    return order
