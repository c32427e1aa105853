# SPDX-License-Identifier: Apache-2.0
"""Schedules with one stage a rank, which differ only in their lead.

Every rank begins with some forwards, its lead (the warm-up). Then backwards and forwards alternate,
and the remaining backwards come last. The lead is the number of microbatches that a rank holds at
its peak. It never grows from one rank to the next: otherwise the next rank would need forwards that
this rank runs only after its first backward, which in turn waits for the next rank's.

If messages cost nothing, the lead does not change the time of a step. For p ranks and m
microbatches, both schedules take (m + p - 1) (tF + tB).
"""

from __future__ import annotations

from smdist.modelparallel.core.schedule.actions import Action, Do
from smdist.modelparallel.core.schedule.blocks import run_of, take_turns
from smdist.modelparallel.core.schedule.schedule_shape import Shape


def simple(shape: Shape, rank: int) -> list[Action]:
    """Order all forwards, then all backwards: GPipe.

    rank 0  F0 F1 F2 F3                   B0=== B1=== B2=== B3===
    rank 1     F0 F1 F2 F3          B0=== B1=== B2=== B3===
    rank 2        F0 F1 F2 F3 B0=== B1=== B2=== B3===

    The lead is m, so every rank holds all microbatches between forwards and backwards.
    """
    return _with_lead(shape, rank, shape.num_microbatches)


def one_forward_one_backward(shape: Shape, rank: int) -> list[Action]:
    """Order 1F1B: the fewest microbatches in flight that keep every rank busy.

    rank 0  F0 F1 F2             B0=== F3 B1===    B2===    B3===
    rank 1     F0 F1       B0=== F2 B1=== F3 B2===    B3===
    rank 2        F0 B0=== F1 B1=== F2 B2=== F3 B3===

    The lead of rank r is p - r: the last rank runs each backward directly after its forward, and
    each rank before it needs one forward more.
    """
    return _with_lead(shape, rank, shape.num_ranks - rank)


def _with_lead(shape: Shape, stage: int, lead: int) -> list[Action]:
    microbatches = range(shape.num_microbatches)
    forwards = run_of(Do.F, stage, microbatches)
    return take_turns(forwards, run_of(Do.B, stage, microbatches), lead=lead)
