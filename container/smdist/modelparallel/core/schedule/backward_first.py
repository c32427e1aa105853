# SPDX-License-Identifier: Apache-2.0
"""Schedule that SageMaker's model parallel library calls interleaved.

Each rank follows one rule:

1. If the inputs of the next backward pass are available, run this backward pass.
2. Otherwise run a forward pass, if its input is available and if the rank holds fewer microbatches
   than its cap. The cap is the option `active_microbatches`.
3. Otherwise wait.

So a rank begins with more forwards than in 1F1B, and then alternates backwards and forwards. The
additional forwards give the next ranks work while messages are sent, but they need more memory.

The order of actions is fixed before the run. This module computes the order with a clock: a forward
pass takes time 1, a backward pass takes time 2, and messages take no time.

With p ranks and m microbatches, the first gradient reaches rank r (from 0) at time p + 2 (p - 1 -
r). Until then the rank can run 3 (p - 1 - r) + 1 forwards. A rank never holds more microbatches
than this number, than the cap, and than m. If the cap is at least p, a step takes as long as with
1F1B. With a lower cap the first ranks wait: the step needs less memory and more time.
"""

from __future__ import annotations

from itertools import pairwise

from smdist.modelparallel.core.schedule.actions import Action, Do
from smdist.modelparallel.core.schedule.schedule_shape import Shape


def interleaved(shape: Shape) -> list[list[Action]]:
    """Return the actions of each rank for SageMaker's schedule "interleaved".

    Each rank runs backward passes (B) as soon as possible, and forward passes (F) otherwise. The
    example has 3 ranks, 6 microbatches, and at most 5 microbatches in flight on a rank:

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
    """Rank that runs a backward pass as soon as possible, and a forward pass otherwise.

    The rank reads the end times of its own actions and of the actions of its neighbour ranks.
    """

    def __init__(self, stage: int, num_microbatches: int, cap: int) -> None:
        self.stage, self.num_microbatches, self.cap = stage, num_microbatches, cap
        self.previous: _Rank | None = None
        self.following: _Rank | None = None
        self.order: list[Action] = []
        self.forward_ends: list[int] = []  # end time of each microbatch
        self.backward_ends: list[int] = []  # end time of each microbatch
        self.free_at = 0

    def act(self, clock: int) -> None:
        """Start an action at time `clock`, if one is possible.

        A backward pass has precedence over a forward pass. A forward pass is possible only while
        the rank holds fewer microbatches than its limit.
        """
        if self._has_gradient(clock):
            self._begin(Do.B, self.backward_ends, clock + 2)
        elif self._is_below_cap() and self._has_input(clock):
            self._begin(Do.F, self.forward_ends, clock + 1)

    def _begin(self, do: Do, ends: list[int], end: int) -> None:
        self.order.append(Action(do, self.stage, len(ends)))
        ends.append(end)
        self.free_at = end

    def _has_gradient(self, clock: int) -> bool:
        """Return True if the next backward pass has its inputs at time `clock`."""
        microbatch = len(self.backward_ends)
        given = self.forward_ends if self.following is None else self.following.backward_ends
        return microbatch < len(given) and given[microbatch] <= clock

    def _has_input(self, clock: int) -> bool:
        """Return True if there is a next forward pass and it has its input at time `clock`."""
        microbatch = len(self.forward_ends)
        if microbatch == self.num_microbatches:
            return False
        given = self.previous.forward_ends if self.previous else None
        return given is None or (microbatch < len(given) and given[microbatch] <= clock)

    def _is_below_cap(self) -> bool:
        """Return True if the rank holds fewer microbatches than its limit, `cap`."""
        return len(self.forward_ends) - len(self.backward_ends) < self.cap
