# SPDX-License-Identifier: Apache-2.0
"""Number of microbatches that each rank holds between their forward and backward passes."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

from smdist.modelparallel.core.schedule.actions import Action, Do, Schedule

_CHANGE = {
    Do.F: 1,
    Do.B: -1,
    Do.I: 0,
    Do.W: -1,
}  # change of the number of microbatches that a stage holds


def peak_in_flight(schedule: Schedule) -> tuple[int, ...]:
    """Return the largest number of microbatches that each rank holds, by rank.

    A stage holds the activations of a microbatch from the start of its forward pass to the end of
    its backward pass, weight gradients included. A rank with several stages counts a microbatch
    once for each of them.
    """
    return tuple(_peak(order) for order in schedule.orders)


def most_in_flight(schedule: Schedule) -> tuple[int, ...]:
    """Return the largest number of microbatches whose activations each stage holds, by stage."""
    held, most = [0] * schedule.num_stages, [0] * schedule.num_stages
    for order in schedule.orders:
        for action in order:
            held[action.stage] += _CHANGE[action.do]
            most[action.stage] = max(most[action.stage], held[action.stage])
    return tuple(most)


def _peak(order: Sequence[Action]) -> int:
    return max(accumulate((_CHANGE[action.do] for action in order), initial=0))
