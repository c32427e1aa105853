# SPDX-License-Identifier: Apache-2.0
"""Schedules with one stage a rank, which differ in one number.

Every rank begins with some forwards, its lead. From then on a backward and a forward take turns,
and at the end come the backwards that are left. The lead is what a rank holds at its peak. It
never grows from one rank to the next: if it did, the next rank would want forwards that this one
gives only after a backward that it waits for.

The lead does not decide how long a step takes where messages cost nothing. For p ranks and m
microbatches that is (m + p - 1) (tF + tB) in both.
"""

from __future__ import annotations

from smdist.modelparallel.core.schedule.actions import Action, Do
from smdist.modelparallel.core.schedule.blocks import run_of, take_turns
from smdist.modelparallel.core.schedule.shape import Shape


def simple(shape: Shape, rank: int) -> list[Action]:
    """All forwards, then all backwards: GPipe.

    rank 0  F0 F1 F2 F3                   B0=== B1=== B2=== B3===
    rank 1     F0 F1 F2 F3          B0=== B1=== B2=== B3===
    rank 2        F0 F1 F2 F3 B0=== B1=== B2=== B3===

    The lead is m, so every rank holds all microbatches between the two.
    """
    return _with_lead(shape, rank, shape.num_microbatches)


def one_forward_one_backward(shape: Shape, rank: int) -> list[Action]:
    """1F1B: as few microbatches in flight as keep every rank busy.

    rank 0  F0 F1 F2             B0=== F3 B1===    B2===    B3===
    rank 1     F0 F1       B0=== F2 B1=== F3 B2===    B3===
    rank 2        F0 B0=== F1 B1=== F2 B2=== F3 B3===

    The lead of rank r is p - r: the last rank turns each microbatch round at once, and every rank
    before it needs one more.
    """
    return _with_lead(shape, rank, shape.num_ranks - rank)


def _with_lead(shape: Shape, stage: int, lead: int) -> list[Action]:
    microbatches = range(shape.num_microbatches)
    forwards = run_of(Do.F, stage, microbatches)
    return take_turns(forwards, run_of(Do.B, stage, microbatches), lead=lead)
