# SPDX-License-Identifier: Apache-2.0
"""Which action waits for which, and an order in which all of them can run.

Every wait is for a place on a rank: `Place(rank, number)` is reached when that rank has done its
first `number` actions. One engine can so run a schedule under any rule for messages.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from smdist.modelparallel.core.schedule.actions import Action, Do, Schedule


class Place(NamedTuple):
    """Reached when `rank` has done its first `number` actions."""

    rank: int
    number: int


Key = tuple[Do, int, int]  # B stands for I as well: both give the gradient that others wait for
Waits = list[list[list[Place]]]  # by rank, by action: what it waits for beyond the one before it


def key_of(action: Action) -> Key:
    """What others know an action by."""
    do = Do.B if action.do is Do.I else action.do
    return do, action.stage, action.microbatch


def needs(action: Action, num_stages: int) -> Iterator[Key]:
    """What must be done before an action, on whichever rank."""
    do, stage, microbatch = action.do, action.stage, action.microbatch
    if do is Do.F:
        if stage > 0:
            yield Do.F, stage - 1, microbatch
        return
    if do is Do.W:
        yield Do.B, stage, microbatch
        return
    yield Do.F, stage, microbatch
    if stage + 1 < num_stages:
        yield Do.B, stage + 1, microbatch


def places_of(schedule: Schedule) -> dict[Key, Place]:
    """Where each action's result is there."""
    return {
        key_of(action): Place(rank, number)
        for rank, order in enumerate(schedule.orders)
        for number, action in enumerate(order, start=1)
    }


def waits_of(schedule: Schedule, places: dict[Key, Place]) -> Waits:
    """What each action waits for where messages take no room."""
    number = schedule.num_stages
    return [
        [[places[key] for key in needs(action, number)] for action in order]
        for order in schedule.orders
    ]


def run(waits: Waits) -> tuple[list[tuple[int, int]], list[int]]:
    """Run every action as soon as it can be: (rank, index) in an order that works, and how far
    each rank came."""
    done = [0] * len(waits)
    order: list[tuple[int, int]] = []
    sleepers: defaultdict[Place, list[int]] = defaultdict(list)
    awake = list(reversed(range(len(waits))))
    while awake:
        rank = awake.pop()
        while done[rank] < len(waits[rank]):
            late = _first_late(waits[rank][done[rank]], done)
            if late is not None:
                sleepers[late].append(rank)
                break
            order.append((rank, done[rank]))
            done[rank] += 1
            awake += sleepers.pop(Place(rank, done[rank]), ())
    return order, done


def _first_late(waits: Sequence[Place], done: list[int]) -> Place | None:
    return next((place for place in waits if done[place.rank] < place.number), None)
