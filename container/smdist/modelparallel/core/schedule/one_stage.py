# SPDX-License-Identifier: Apache-2.0
"""Schedules with one stage a rank, which differ in one number.

Every rank begins with some forwards, its lead. After them it has the choice between the backward
that it waits for and one more forward. All three schedules here decide alike: a backward and a
forward in turn, and the backwards that are left at the end. The lead alone decides

  * memory: a rank holds as many microbatches as its lead, never more;
  * how long a message may take: a rank with a greater lead than it needs still has work while the
    gradient it waits for is on its way.

It does not decide how long a step takes where messages cost nothing: that is
(m + p - 1) (tF + tB) for p ranks and m microbatches in each of the three.

A lead never grows from one rank to the next. If it did, the next rank would want forwards that
this one gives only after a backward that it waits for.
"""

from __future__ import annotations

from smdist.modelparallel.core.schedule.actions import Action, Do
from smdist.modelparallel.core.schedule.blocks import run_of, take_turns
from smdist.modelparallel.core.schedule.shape import Shape


def simple(shape: Shape, rank: int) -> list[Action]:
    """All forwards, then all backwards: GPipe.

    The lead is m, so every rank holds all microbatches between the two.
    """
    return _with_lead(shape, rank, shape.num_microbatches)


def one_forward_one_backward(shape: Shape, rank: int) -> list[Action]:
    """1F1B: as few microbatches in flight as keep every rank busy.

    The lead of rank r is p - r: the last rank turns each microbatch round at once, and every rank
    before it needs one more.
    """
    return _with_lead(shape, rank, shape.num_ranks - rank)


def interleaved(shape: Shape, rank: int) -> list[Action]:
    """What SageMaker's model parallel library calls interleaved: a backward as soon as it can be.

    A rank goes on with forwards until its first gradient comes back, but holds at most
    `active_microbatches`. At tF = 1 and tB = 2, rank r starts at r, and its first gradient is
    there at p + 2 (p - 1 - r): time for 3 (p - 1 - r) + 1 forwards. From then on backwards and
    forwards take turns.
    """
    until_first_gradient = 3 * (shape.num_ranks - 1 - rank) + 1
    active = shape.active_microbatches or shape.num_ranks + 2
    return _with_lead(shape, rank, min(active, until_first_gradient))


def _with_lead(shape: Shape, stage: int, lead: int) -> list[Action]:
    microbatches = range(shape.num_microbatches)
    forwards = run_of(Do.F, stage, microbatches)
    return take_turns(forwards, run_of(Do.B, stage, microbatches), lead=lead)
