# SPDX-License-Identifier: Apache-2.0
"""Actions of one rank in a step, and a limit for the messages in flight between two ranks.

An action is a forward or backward pass of one stage for one microbatch. The limit is as small as
possible without a deadlock, plus a reserve for small delays.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

from smdist.modelparallel.core.placement import Edge
from smdist.modelparallel.core.schedule.actions import Action, Do, Schedule
from smdist.modelparallel.core.schedule.dependencies import Place, Waits, run

_AHEAD: Final = 2  # messages beyond the least window, so that small delays stop no rank
_Order = tuple[Action, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class RankSchedule:
    """Actions of one rank in a step: forward and backward passes of its stages.

    Attributes:
        actions: Actions in the order in which the rank runs them.
        orders: Actions of all ranks of the pipeline, in order.
        last: Last backward action of each stage of this rank.
        split: (stage, microbatch) pairs whose backward pass is two actions: I computes gradients of
            the stage's inputs, and W, later, gradients of the stage's parameters.
        window: Largest number of actions whose messages may be in flight at once from this rank to
            one other rank. Values and gradients are counted separately.
    """

    actions: _Order
    orders: tuple[_Order, ...]
    last: frozenset[Action]
    window: int
    split: frozenset[tuple[int, int]] = frozenset()

    @classmethod
    def of(
        cls, schedule: Schedule, rank: int, edges: Iterable[Edge], *, backward: bool
    ) -> RankSchedule:
        """Select one rank's actions from a schedule, and compute the limit of messages in flight.

        Args:
            schedule: Actions of all ranks of a pipeline.
            rank: Number of the rank in its pipeline.
            edges: Values that one stage sends to another one; the limit depends on them.
            backward: False to leave out the backward passes.
        """
        orders = [
            tuple(action for action in order if backward or action.do is Do.F)
            for order in schedule.orders
        ]
        last = {action.stage: action for action in orders[rank] if action.do is not Do.F}
        return cls(
            actions=orders[rank],
            orders=tuple(orders),
            last=frozenset(last.values()),
            split=frozenset((a.stage, a.microbatch) for a in orders[rank] if a.do is Do.I),
            window=_AHEAD + _least_window(orders, schedule.rank_of, frozenset(_pairs(edges))),
        )


def _pairs(edges: Iterable[Edge]) -> Iterator[tuple[int, int, bool]]:
    """Yield (sending stage, receiving stage, True if a gradient is sent back) for each edge.

    Args:
        edges: Values that one stage sends to another one.
    """
    return ((edge.source, edge.target, edge.has_gradient) for edge in edges)


def _least_window(
    orders: list[_Order], rank_of: tuple[int, ...], pairs: frozenset[tuple[int, int, bool]]
) -> int:
    """Return the smallest limit of messages in flight with which no deadlock can occur.

    The limit applies to each pair of ranks, and to values and gradients separately. All messages
    that one action sends to another action count as one.

    Args:
        orders: Actions of each rank, in order.
        rank_of: Rank of each stage.
        pairs: (sending stage, receiving stage, True if a gradient is sent back) for all stages that
            exchange values.
    """
    waits, channels = _flow(orders, rank_of, pairs)
    longest = max((len(messages) for messages in channels.values()), default=1)

    def ends(window: int) -> bool:
        """Return True if there is no deadlock with at most `window` messages in flight."""
        done = run(_bounded(waits, channels, window)).done
        return done == [len(order) for order in orders]

    return 1 + bisect_left(range(1, longest), True, key=ends)


# by sending rank, receiving rank and direction: indices of the sending and the receiving action
_Channels = dict[tuple[int, int, Do], list[tuple[int, int]]]


def _flow(
    orders: list[_Order], rank_of: tuple[int, ...], pairs: frozenset[tuple[int, int, bool]]
) -> tuple[Waits, _Channels]:
    """Return which actions wait for other stages, and which messages the ranks exchange.

    Args:
        orders: Actions of each rank, in order.
        rank_of: Rank of each stage.
        pairs: (sending stage, receiving stage, True if a gradient is sent back) for all stages that
            exchange values.

    Returns:
        Dependencies of each action, and the messages from each rank to each other rank.
    """
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
    """Add dependencies, so that a limited number of messages is in flight.

    Args:
        waits: Dependencies of each action without this limit.
        channels: Messages from each rank to each other rank, in the order of sending.
        window: Largest number of messages in flight from one rank to another.

    Returns:
        Dependencies of each action with this limit.
    """
    bounded = [list(order) for order in waits]
    for (source, target, _), messages in channels.items():
        latest = 0
        for (_, taken), (sent, _) in zip(messages, messages[window:], strict=False):
            # the receiver may read messages in another order than they were sent
            latest = max(latest, taken)
            place: Place = (target, latest)
            bounded[source][sent] += (place,)
    return bounded
