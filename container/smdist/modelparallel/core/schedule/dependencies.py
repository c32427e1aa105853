# SPDX-License-Identifier: Apache-2.0
"""Dependencies between the actions of a schedule, and an order in which all of them can run.

A dependency of an action is a place (rank, n). The place is reached when this rank has done its
first n actions. An action waits for places either because it needs a result, or because it needs a
free buffer for a message. So the same code handles limited and unlimited buffers.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from smdist.modelparallel.core.schedule.actions import Action, Do, Schedule

Place = tuple[int, int]  # rank, number of actions done
Waits = list[list[tuple[Place, ...]]]  # places that each action waits for, by rank and position


@dataclass(frozen=True)  # no slots: the class has cached properties
class Dependencies:
    """Dependencies between the actions of a schedule that contains every action once."""

    schedule: Schedule

    @cached_property
    def waits(self) -> Waits:
        """Places that each action waits for with unlimited buffers, by rank and position.

        A place (rank, n) is reached when this rank has done its first n actions. The previous
        action of the same rank is not listed.
        """
        places, last = self._places, self.schedule.num_stages - 1
        return [
            [tuple([places[key] for key in _needs(action, last)]) for action in order]
            for order in self.schedule.orders
        ]

    def at(self, place: Place) -> Action:
        """Return the action after which a place is reached.

        Args:
            place: (rank, n), which is reached when this rank has done its first n actions.
        """
        rank, number = place
        return self.schedule.orders[rank][number - 1]

    @cached_property
    def _places(self) -> dict[_Key, Place]:
        """Place where each result becomes available, by kind, stage and microbatch of the result.

        A place (rank, n) is reached when this rank has done its first n actions.
        """
        return {
            (_RESULT[action.do], action.stage, action.microbatch): (rank, number)
            for rank, order in enumerate(self.schedule.orders)
            for number, action in enumerate(order, start=1)
        }


_Key = tuple[Do, int, int]  # result of an action: kind, stage, microbatch
_RESULT = {
    Do.F: Do.F,
    Do.B: Do.B,
    Do.I: Do.B,
    Do.W: Do.W,
}  # I computes the input gradient, as B does


def _needs(action: Action, last_stage: int) -> tuple[_Key, ...]:
    """Return the results that an action needs, as (kind, stage, microbatch).

    The results may come from any rank.

    Args:
        action: Action that needs the results.
        last_stage: Number of the last stage, whose backward pass needs no gradient of another
            stage.
    """
    do, stage, microbatch = action.do, action.stage, action.microbatch
    if do is Do.F:
        return ((do, stage - 1, microbatch),) if stage else ()
    if do is Do.W:
        return ((Do.B, stage, microbatch),)
    forward = (Do.F, stage, microbatch)
    return (forward,) if stage == last_stage else (forward, (Do.B, stage + 1, microbatch))


class DependencyRun(NamedTuple):
    """Order in which the actions of all ranks can run.

    If the schedule has a deadlock, the order ends at the deadlock.

    Attributes:
        order: (rank, position in the rank's order) of each action. An action comes after all
            actions that it waits for.
        done: Number of actions in `order`, by rank.
    """

    order: list[tuple[int, int]]
    done: list[int]


def run(waits: Waits) -> DependencyRun:
    """Return an order in which the actions of all ranks can run.

    If the schedule has a deadlock, the order ends at the deadlock. No action is executed.

    Args:
        waits: Places that each action waits for, by rank and position in the rank's order. A
            place (rank, n) is reached when this rank has done its first n actions.
    """
    done = [0] * len(waits)
    order: list[tuple[int, int]] = []
    waiting: defaultdict[Place, list[int]] = defaultdict(list)
    awake = list(reversed(range(len(waits))))
    while awake:
        rank = awake.pop()
        while done[rank] < len(waits[rank]):
            place = first_unreached(waits[rank][done[rank]], done)
            if place is not None:
                waiting[place].append(rank)
                break
            order.append((rank, done[rank]))
            done[rank] += 1
            awake += waiting.pop((rank, done[rank]), ())
    return DependencyRun(order, done)


def first_unreached(waits: Sequence[Place], done: Sequence[int]) -> Place | None:
    """Return the first of the places that is not reached yet, or None.

    Args:
        waits: Places (rank, n), which are reached when this rank has done its first n actions.
        done: Number of actions done, by rank.
    """
    for place in waits:
        if done[place[0]] < place[1]:
            return place
    return None
