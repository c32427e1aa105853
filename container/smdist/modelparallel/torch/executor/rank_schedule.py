# SPDX-License-Identifier: Apache-2.0
"""Schedule of one rank in a step, and the limit of messages in flight meanwhile."""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

from smdist.modelparallel.core.placement import Edge
from smdist.modelparallel.core.schedule.actions import Action, Do, Schedule
from smdist.modelparallel.core.schedule.dependencies import Place, Waits, run

_AHEAD: Final = 2  # slack, so that no rank waits for one that is slightly late
_Order = tuple[Action, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class RankSchedule:
    """Actions of one rank.

    Attributes:
        stops: The actions, in order.
        last: For each stage, the action that ends its backward pass in this step.
        split: Stages and microbatches whose backward pass is split in two halves.
        window: Number of actions whose messages may be in flight at once from one rank to
            another, in one direction; a further message waits.
    """

    stops: _Order
    last: frozenset[Action]
    window: int
    split: frozenset[tuple[int, int]] = frozenset()

    @classmethod
    def of(
        cls, schedule: Schedule, rank: int, edges: Iterable[Edge], *, backward: bool
    ) -> RankSchedule:
        """Return the schedule of one rank; without `backward`, only its forward passes."""
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
    """Return the fewest messages in flight with which no rank waits forever."""
    waits, channels = _flow(orders, rank_of, pairs)
    longest = max((len(messages) for messages in channels.values()), default=1)

    def ends(window: int) -> bool:
        done = run(_bounded(waits, channels, window)).done
        return done == [len(order) for order in orders]

    return 1 + bisect_left(range(1, longest), True, key=ends)


# messages by sender, receiver and kind: index of the sending action, of the receiving action
_Channels = dict[tuple[int, int, Do], list[tuple[int, int]]]


def _flow(
    orders: list[_Order], rank_of: tuple[int, ...], pairs: frozenset[tuple[int, int, bool]]
) -> tuple[Waits, _Channels]:
    """Return the predecessors of each action, and all messages between ranks in send order."""
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
            # the receiver may take messages in another order than the send order
            latest = max(latest, taken)
            place: Place = (target, latest)
            bounded[source][sent] += (place,)
    return bounded
