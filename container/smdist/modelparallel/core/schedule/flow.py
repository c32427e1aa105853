# SPDX-License-Identifier: Apache-2.0
"""Which action of a schedule waits for which, and an order in which all of them can run.

Every wait is for a place: `Place(rank, number)` is reached when that rank has done its first
`number` actions. So one engine runs a schedule under any rule for messages.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from smdist.modelparallel.core.schedule.actions import Action, Do, Schedule


class Place(NamedTuple):
    """Reached when `rank` has done its first `number` actions."""

    rank: int
    number: int


Waits = list[list[list[Place]]]  # by rank, by action: beyond the action before it


@dataclass(frozen=True)  # no slots: cached properties
class Flow:
    """What follows from a schedule in which every action is there once."""

    schedule: Schedule

    @cached_property
    def waits(self) -> Waits:
        """What each action waits for, where messages take no room."""
        places, last = self._places, self.schedule.num_stages - 1
        return [
            [[places[key] for key in _needs(action, last)] for action in order]
            for order in self.schedule.orders
        ]

    def at(self, place: Place) -> Action:
        """The action with which a place is reached."""
        return self.schedule.orders[place.rank][place.number - 1]

    @cached_property
    def _places(self) -> dict[_Key, Place]:
        """Where each result is there."""
        return {
            (Do.B if action.do is Do.I else action.do, action.stage, action.microbatch): Place(
                rank, number
            )
            for rank, order in enumerate(self.schedule.orders)
            for number, action in enumerate(order, start=1)
        }


_Key = tuple[Do, int, int]  # do, stage, microbatch; B for I as well: both give the gradient


def _needs(action: Action, last_stage: int) -> Iterable[_Key]:
    """What must be done before an action, on whichever rank."""
    do, stage, microbatch = action.do, action.stage, action.microbatch
    if do is Do.F:
        return [(do, stage - 1, microbatch)] if stage else ()
    if do is Do.W:
        return [(Do.B, stage, microbatch)]
    forward = (Do.F, stage, microbatch)
    return [forward] if stage == last_stage else [forward, (Do.B, stage + 1, microbatch)]


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
            awake += sleepers.pop(Place(rank, done[rank]), ())
    return Run(order, done)


def first_late(waits: Sequence[Place], done: Sequence[int]) -> Place | None:
    """The first place that is not reached."""
    for place in waits:
        if done[place.rank] < place.number:
            return place
    return None
