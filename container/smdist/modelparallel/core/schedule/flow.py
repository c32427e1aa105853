# SPDX-License-Identifier: Apache-2.0
"""Which action of a schedule waits for which, and an order in which all of them can run.

Every wait is for a place (rank, number), which is reached when that rank has done its first
`number` actions. So one engine runs a schedule under any rule for messages. Places are plain
tuples: there are as many as actions.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from smdist.modelparallel.core.schedule.actions import Action, Do, Schedule

Place = tuple[int, int]  # rank, number
Waits = list[list[tuple[Place, ...]]]  # by rank, by action: beyond the action before it


@dataclass(frozen=True)  # no slots: cached properties
class Flow:
    """What follows from a schedule in which every action is there once."""

    schedule: Schedule

    @cached_property
    def waits(self) -> Waits:
        """What each action waits for, where messages take no room."""
        places, last = self._places, self.schedule.num_stages - 1
        return [
            [tuple([places[key] for key in _needs(action, last)]) for action in order]
            for order in self.schedule.orders
        ]

    def at(self, place: Place) -> Action:
        """The action with which a place is reached."""
        rank, number = place
        return self.schedule.orders[rank][number - 1]

    @cached_property
    def _places(self) -> dict[_Key, Place]:
        """Where each result is there."""
        return {
            (_RESULT[action.do], action.stage, action.microbatch): (rank, number)
            for rank, order in enumerate(self.schedule.orders)
            for number, action in enumerate(order, start=1)
        }


_Key = tuple[Do, int, int]  # a result: what gives it, stage, microbatch
_RESULT = {Do.F: Do.F, Do.B: Do.B, Do.I: Do.B, Do.W: Do.W}  # I gives the gradient as B does


def _needs(action: Action, last_stage: int) -> tuple[_Key, ...]:
    """What must be there before an action, on whichever rank."""
    do, stage, microbatch = action.do, action.stage, action.microbatch
    if do is Do.F:
        return ((do, stage - 1, microbatch),) if stage else ()
    if do is Do.W:
        return ((Do.B, stage, microbatch),)
    forward = (Do.F, stage, microbatch)
    return (forward,) if stage == last_stage else (forward, (Do.B, stage + 1, microbatch))


class Run(NamedTuple):
    """How far the ranks came.

    Attributes:
        order: (rank, index) of every action done, each after all that it waited for.
        done: By rank, how many actions it did.
    """

    order: list[tuple[int, int]]
    done: list[int]


def run(waits: Waits) -> Run:
    """Let every rank go as far as it can. How far that is does not depend on who goes first."""
    done = [0] * len(waits)
    order: list[tuple[int, int]] = []
    sleepers: defaultdict[Place, list[int]] = defaultdict(list)
    awake = list(reversed(range(len(waits))))
    while awake:
        rank = awake.pop()
        while done[rank] < len(waits[rank]):
            late = first_late(waits[rank][done[rank]], done)
            if late is not None:
                sleepers[late].append(rank)
                break
            order.append((rank, done[rank]))
            done[rank] += 1
            awake += sleepers.pop((rank, done[rank]), ())
    return Run(order, done)


def first_late(waits: Sequence[Place], done: Sequence[int]) -> Place | None:
    """The first place that is not reached."""
    for place in waits:
        if done[place[0]] < place[1]:
            return place
    return None
