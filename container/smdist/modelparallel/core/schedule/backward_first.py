# SPDX-License-Identifier: Apache-2.0
"""Schedule that SageMaker's model parallel library calls interleaved: backward first, with a cap.

A rank that can run either pass runs the backward pass. It runs a forward pass while it holds fewer
than `active_microbatches` microbatches, and waits otherwise. So it begins with more forwards than
1F1B allows, and then alternates backwards and forwards. The extra forwards give the next ranks work
while messages travel; they cost memory.

The rule decides at run time, but a schedule is an order fixed in advance. So the order is the one
that results if every rank follows the rule with tF = 1 and tB = 2, and messages take no time. Rank
r then gets its first gradient at p + 2 (p - 1 - r), after time for 3 (p - 1 - r) + 1 forwards; this
number, the cap and m limit the microbatches that it holds. A step takes (m + p - 1) (tF + tB) if
the cap is p or more, like 1F1B; with a lower cap the first ranks wait, which saves memory but costs
time.
"""

from __future__ import annotations

from itertools import pairwise

from smdist.modelparallel.core.schedule.actions import Action, Do
from smdist.modelparallel.core.schedule.schedule_shape import Shape


def interleaved(shape: Shape) -> list[list[Action]]:
    """Apply the rule to every rank, one time unit after another. Here rank 0 stops at its cap of 5:

    rank 0  F0 F1 F2 F3 F4       B0=== F5 B1===    B2===    B3===    B4===    B5===
    rank 1     F0 F1 F2 F3 B0=== F4 B1=== F5 B2===    B3===    B4===    B5===
    rank 2        F0 B0=== F1 B1=== F2 B2=== F3 B3=== F4 B4=== F5 B5===
    """
    ranks = _ranks(shape)
    clock = 0
    while any(len(rank.backward_ends) < shape.num_microbatches for rank in ranks):
        for rank in ranks:
            if rank.free_at <= clock:
                rank.act(clock)
        clock += 1
    return [rank.order for rank in ranks]


def _ranks(shape: Shape) -> list[_Rank]:
    cap = shape.active_microbatches or shape.num_ranks + 2
    ranks = [_Rank(stage, shape.num_microbatches, cap) for stage in range(shape.num_ranks)]
    for rank, following in pairwise(ranks):
        rank.following, following.previous = following, rank
    return ranks


class _Rank:
    """Rank that follows the rule; it knows the end times of its own and its neighbours' actions."""

    def __init__(self, stage: int, num_microbatches: int, cap: int) -> None:
        self.stage, self.num_microbatches, self.cap = stage, num_microbatches, cap
        self.previous: _Rank | None = None
        self.following: _Rank | None = None
        self.order: list[Action] = []
        self.forward_ends: list[int] = []  # end time of each microbatch
        self.backward_ends: list[int] = []  # end time of each microbatch
        self.free_at = 0

    def act(self, clock: int) -> None:
        """Start the action that the rule chooses, if any."""
        if self._has_gradient(clock):
            self._begin(Do.B, self.backward_ends, clock + 2)
        elif self._has_room() and self._has_input(clock):
            self._begin(Do.F, self.forward_ends, clock + 1)

    def _begin(self, do: Do, ends: list[int], end: int) -> None:
        self.order.append(Action(do, self.stage, len(ends)))
        ends.append(end)
        self.free_at = end

    def _has_gradient(self, clock: int) -> bool:
        microbatch = len(self.backward_ends)
        given = self.forward_ends if self.following is None else self.following.backward_ends
        return microbatch < len(given) and given[microbatch] <= clock

    def _has_input(self, clock: int) -> bool:
        microbatch = len(self.forward_ends)
        if microbatch == self.num_microbatches:
            return False
        given = self.previous.forward_ends if self.previous else None
        return given is None or (microbatch < len(given) and given[microbatch] <= clock)

    def _has_room(self) -> bool:
        return len(self.forward_ends) - len(self.backward_ends) < self.cap
