# SPDX-License-Identifier: Apache-2.0
"""Schedules with one stage on each rank: GPipe ("simple") and 1F1B.

Every rank begins with some forwards, its warm-up. Then backwards and forwards alternate, and the
remaining backwards follow. The number of warm-up forwards is the largest number of microbatches
that the rank holds.

A rank never has a longer warm-up than the previous rank. With a longer warm-up there would be a
deadlock: the rank would wait for a forward that the previous rank runs after its first backward,
and this backward needs the gradient of the waiting rank.

If messages take no time, the warm-up does not change the time of a step. For p ranks and m
microbatches, both schedules take m + p - 1 times a forward and a backward pass of one microbatch.
"""

from __future__ import annotations

from smdist.modelparallel.core.schedule.actions import Action, Do
from smdist.modelparallel.core.schedule.blocks import actions_of, alternate
from smdist.modelparallel.core.schedule.schedule_shape import Shape


def simple(shape: Shape, rank: int) -> list[Action]:
    """Return a rank's actions for GPipe: all forwards, then all backwards.

    rank 0  F0 F1 F2 F3                   B0=== B1=== B2=== B3===
    rank 1     F0 F1 F2 F3          B0=== B1=== B2=== B3===
    rank 2        F0 F1 F2 F3 B0=== B1=== B2=== B3===

    Every rank holds all microbatches between forwards and backwards.
    """
    return _with_warmup(shape, rank, shape.num_microbatches)


def one_forward_one_backward(shape: Shape, rank: int) -> list[Action]:
    """Return a rank's actions for 1F1B: one forward, one backward in turn after the warm-up.

    rank 0  F0 F1 F2             B0=== F3 B1===    B2===    B3===
    rank 1     F0 F1       B0=== F2 B1=== F3 B2===    B3===
    rank 2        F0 B0=== F1 B1=== F2 B2=== F3 B3===

    On p ranks, the warm-up of rank r (from 0) has p - r forwards. The last rank runs each backward
    directly after its forward, and each rank before it needs one more forward. No schedule that
    keeps all ranks busy holds fewer microbatches.
    """
    return _with_warmup(shape, rank, shape.num_ranks - rank)


def _with_warmup(shape: Shape, stage: int, warmup: int) -> list[Action]:
    """Return a stage's actions with `warmup` forwards before the first backward."""
    microbatches = range(shape.num_microbatches)
    forwards = actions_of(Do.F, stage, microbatches)
    return alternate(forwards, actions_of(Do.B, stage, microbatches), warmup=warmup)
