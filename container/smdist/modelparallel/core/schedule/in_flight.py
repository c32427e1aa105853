# SPDX-License-Identifier: Apache-2.0
"""Microbatches that each rank holds between forward and backward: the memory cost of a schedule."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

from smdist.modelparallel.core.schedule.actions import Action, Do, Schedule

_CHANGE = {Do.F: 1, Do.B: -1, Do.I: 0, Do.W: -1}


def peak_in_flight(schedule: Schedule) -> tuple[int, ...]:
    """Return the largest number of microbatches that each rank holds, summed over its stages.

    A stage holds a microbatch from the start of F to the end of B. If the backward is split, it
    holds the microbatch to the end of W, since weight gradients need the saved values of the
    forward pass. With v stages a rank, n counts as much as n / v microbatches of the whole rank.
    """
    return tuple(_peak(order) for order in schedule.orders)


def _peak(order: Sequence[Action]) -> int:
    return max(accumulate((_CHANGE[action.do] for action in order), initial=0))
