# SPDX-License-Identifier: Apache-2.0
"""How much each rank holds between forward and backward: the memory that a schedule costs."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

from smdist.modelparallel.core.schedule.actions import Action, Do, Schedule

_CHANGE = {Do.F: 1, Do.B: -1, Do.I: 0, Do.W: -1}


def peak_in_flight(schedule: Schedule) -> tuple[int, ...]:
    """The most microbatches that each rank holds at once, counted for each of its stages.

    A stage holds a microbatch from the beginning of F to the end of B. Where the backward is
    split it does so to the end of W, since weight gradients need what the forward pass saved.
    With v stages a rank, a number of n is as much as n / v microbatches of the whole rank.
    """
    return tuple(_peak(order) for order in schedule.orders)


def _peak(order: Sequence[Action]) -> int:
    return max(accumulate((_CHANGE[action.do] for action in order), initial=0))
