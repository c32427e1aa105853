# SPDX-License-Identifier: Apache-2.0
"""What one rank does in a step, in order, and how many messages may be on their way meanwhile."""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

from smdist.modelparallel.core.placement import Edge
from smdist.modelparallel.core.schedule.actions import Action, Do, Schedule
from smdist.modelparallel.core.schedule.flow import Place, Waits, run

_AHEAD: Final = 2  # more than it takes: nobody waits for a rank that is late by a little
_Order = tuple[Action, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Course:
    """The actions of one rank.

    Attributes:
        stops: In order.
        last: Those that end the backward pass of a stage in this step.
        split: Stages and microbatches whose backward pass is in two halves.
        window: A message waits until all but so many actions that sent before it, the same way,
            have been heard.
    """

    stops: _Order
    last: frozenset[Action]
    window: int
    split: frozenset[tuple[int, int]] = frozenset()

    @classmethod
    def of(cls, schedule: Schedule, rank: int, edges: Iterable[Edge], *, backward: bool) -> Course:
        """Of one rank; without `backward` the forward passes alone."""
        orders = [
            tuple(action for action in order if backward or action.do is Do.F)
            for order in schedule.orders
        ]
        last = {action.stage: action for action in orders[rank] if action.do is not Do.F}
        return cls(
            stops=orders[rank],
            last=frozenset(last.values()),
            split=frozenset((a.stage, a.microbatch) for a in orders[rank] if a.do is Do.I),
            window=_AHEAD + _least_window(orders, schedule.rank_of, frozenset(_pairs(edges))),
        )


def _pairs(edges: Iterable[Edge]) -> Iterator[tuple[int, int, bool]]:
    return ((edge.source, edge.target, edge.has_gradient) for edge in edges)


def _least_window(
    orders: list[_Order], rank_of: tuple[int, ...], pairs: frozenset[tuple[int, int, bool]]
) -> int:
    """The fewest messages on the way with which no rank waits for ever."""
    waits, channels = _flow(orders, rank_of, pairs)
    longest = max((len(messages) for messages in channels.values()), default=1)

    def ends(window: int) -> bool:
        done = run(_bounded(waits, channels, window)).done
        return done == [len(order) for order in orders]

    return 1 + bisect_left(range(1, longest), True, key=ends)


_Channels = dict[tuple[int, int, Do], list[tuple[int, int]]]  # (index of sender, of receiver)


def _flow(
    orders: list[_Order], rank_of: tuple[int, ...], pairs: frozenset[tuple[int, int, bool]]
) -> tuple[Waits, _Channels]:
    """What each action waits for, and all messages between ranks in the order they are sent."""
    place: dict[tuple[Do, int, int], tuple[int, int]] = {
        (Do.B if action.do is Do.I else action.do, action.stage, action.microbatch): (rank, index)
        for rank, order in enumerate(orders)
        for index, action in enumerate(order)
    }
    waits: Waits = [[() for _ in order] for order in orders]
    channels: defaultdict[tuple[int, int, Do], list[tuple[int, int]]] = defaultdict(list)
    ways = [(Do.F, source, target) for source, target, _ in pairs]
    ways += [(Do.B, target, source) for source, target, has_gradient in pairs if has_gradient]
    microbatches = {key[2] for key in place}
    for do, sender, receiver in ways:
        for microbatch in microbatches if (do, sender, 0) in place else ():
            start, end = place[do, sender, microbatch], place[do, receiver, microbatch]
            waits[end[0]][end[1]] += ((start[0], start[1] + 1),)
            if rank_of[sender] != rank_of[receiver]:
                channels[start[0], end[0], do].append((start[1], end[1]))
    return waits, {key: sorted(set(messages)) for key, messages in channels.items()}


def _bounded(waits: Waits, channels: _Channels, window: int) -> Waits:
    bounded = [list(order) for order in waits]
    for (source, target, _), messages in channels.items():
        latest = 0
        for (_, taken), (sent, _) in zip(messages, messages[window:], strict=False):
            latest = max(latest, taken)  # messages may be taken in another order than they are sent
            place: Place = (target, latest)
            bounded[source][sent] += (place,)
    return bounded
