# SPDX-License-Identifier: Apache-2.0
"""Dependencies between the actions of a schedule, and an order in which all of them can run.

Every action waits for places. A place (rank, number) is reached when that rank has done its first
`number` actions. So the same code runs a schedule under any rule for messages. Places are plain
tuples, because there are as many as actions.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from smdist.modelparallel.core.schedule.actions import Action, Do, Schedule

Place = tuple[int, int]  # rank, number of actions done
Waits = list[list[tuple[Place, ...]]]  # by rank and action, besides the action before it


@dataclass(frozen=True)  # no slots: the class has cached properties
class Flow:
    """Dependencies in a schedule that contains every action once."""

    schedule: Schedule

    @cached_property
    def waits(self) -> Waits:
        """Places that each action waits for, if buffers are unlimited."""
        places, last = self._places, self.schedule.num_stages - 1
        return [
            [tuple([places[key] for key in _needs(action, last)]) for action in order]
            for order in self.schedule.orders
        ]

    def at(self, place: Place) -> Action:
        """Return the action with which a place is reached."""
        rank, number = place
        return self.schedule.orders[rank][number - 1]

    @cached_property
    def _places(self) -> dict[_Key, Place]:
        """Place at which each result is ready."""
        return {
            (_RESULT[action.do], action.stage, action.microbatch): (rank, number)
            for rank, order in enumerate(self.schedule.orders)
            for number, action in enumerate(order, start=1)
        }


_Key = tuple[Do, int, int]  # a result: kind of action, stage, microbatch
_RESULT = {Do.F: Do.F, Do.B: Do.B, Do.I: Do.B, Do.W: Do.W}  # I gives the input gradient, like B


def _needs(action: Action, last_stage: int) -> tuple[_Key, ...]:
    """Return the results that an action needs, on any rank."""
    do, stage, microbatch = action.do, action.stage, action.microbatch
    if do is Do.F:
        return ((do, stage - 1, microbatch),) if stage else ()
    if do is Do.W:
        return ((Do.B, stage, microbatch),)
    forward = (Do.F, stage, microbatch)
    return (forward,) if stage == last_stage else (forward, (Do.B, stage + 1, microbatch))


class DependencyRun(NamedTuple):
    """Progress of the ranks.

    Attributes:
        order: (rank, index) of every action done, each after all actions that it waited for.
        done: Number of actions done, by rank.
    """

    order: list[tuple[int, int]]
    done: list[int]


def run(waits: Waits) -> DependencyRun:
    """Let every rank run as far as it can; the result does not depend on the order of ranks."""
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
    return DependencyRun(order, done)


def first_late(waits: Sequence[Place], done: Sequence[int]) -> Place | None:
    """Return the first place that is not reached, or None."""
    for place in waits:
        if done[place[0]] < place[1]:
            return place
    return None
