# SPDX-License-Identifier: Apache-2.0
"""Memory of a rank during each of its actions, computed from their order without times.

    held = static + saved activations + receive buffers + workspace

* Saved activations of a stage and microbatch: from the start of F to the end of B, or of W.
* Receive buffers: posted one action ahead and freed once consumed, so during an action a rank holds
  the buffers of this action and of the next one. A value between two stages of the same rank needs
  no buffer; it is held from the action that writes it to the one that reads it.
* Workspace: that of the stage, during the action.

Values that wait to be sent are not counted: the stages that keep activations already count them as
saved. The batch is not counted either, even if the first layer keeps it: microbatches are views of
memory that exists anyway.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain

from smdist.modelparallel.core.cost import NodeCost
from smdist.modelparallel.core.placement import Edge
from smdist.modelparallel.core.schedule.actions import Do, Schedule
from smdist.modelparallel.core.simulate.schedule_tables import (
    ROW,
    StageTraffic,
    backward_traffic,
    forward_traffic,
)
from smdist.modelparallel.core.simulate.timeline import Peak


@dataclass(frozen=True, slots=True, kw_only=True)
class _Bytes:
    """Changes of memory by an action, in bytes, by row (see `schedule_tables`).

    Attributes:
        saved: Saved activations, held from the action's start on.
        received: Receive buffers, held during the previous action and the action itself.
        workspace: Workspace, held during the action.
        after: Bytes held after the action's end, minus the bytes freed then.
    """

    saved: list[int]
    received: list[int]
    workspace: list[int]
    after: list[int]


def held_bytes(
    schedule: Schedule,
    rows: Sequence[Sequence[int]],
    stages: Sequence[NodeCost],
    edges: Sequence[Edge],
    static_bytes: Sequence[int],
) -> tuple[tuple[tuple[int, ...], ...], tuple[Peak, ...]]:
    """Return the bytes during each action, by rank and place in its order, and each rank's peak."""
    by_row = _by_row(schedule, stages, edges)
    during = tuple(map(partial(_during, by_row), rows, static_bytes))
    return during, tuple(map(partial(_peak, by_row), rows, static_bytes, during))


def _during(by_row: _Bytes, order: Sequence[int], held: int) -> tuple[int, ...]:
    saved, received, after = by_row.saved, by_row.received, by_row.after
    workspace, during = by_row.workspace, []
    posted = chain((received[row] for row in order[1:]), [0])
    for row, ahead in zip(order, posted, strict=False):
        held += saved[row]
        during.append(held + received[row] + ahead + workspace[row])
        held += after[row]
    return tuple(during)


def _peak(by_row: _Bytes, order: Sequence[int], static: int, during: Sequence[int]) -> Peak:
    if not order:
        return Peak(static_bytes=static)
    most = max(during)
    place = during.index(most)
    received = sum(by_row.received[row] for row in order[place : place + 2])
    workspace = by_row.workspace[order[place]]
    return Peak(
        place=place,
        static_bytes=static,
        saved_bytes=most - static - received - workspace,
        receive_bytes=received,
        workspace_bytes=workspace,
    )


def _by_row(schedule: Schedule, stages: Sequence[NodeCost], edges: Sequence[Edge]) -> _Bytes:
    num_stages = len(stages)
    nothing = [0] * num_stages
    saved = [cost.saved_bytes for cost in stages]
    freed = [-cost.saved_bytes for cost in stages]
    by_row = _Bytes(
        saved=saved + 3 * nothing,
        received=4 * nothing,
        workspace=4 * [cost.workspace_bytes for cost in stages],
        after=nothing + freed + nothing + freed,  # rows of F, B, I, W
    )
    forward, backward = forward_traffic(edges), backward_traffic(edges)
    _flow(by_row, schedule, (Do.F,), forward)
    _flow(by_row, schedule, (Do.B, Do.I), backward)
    return by_row


def _flow(
    by_row: _Bytes, schedule: Schedule, does: Iterable[Do], flows: list[StageTraffic]
) -> None:
    """Add receive buffers between ranks, and values between two stages of one rank."""
    for first in (ROW[do] * schedule.num_stages for do in does):
        for source, target, num_bytes in flows:
            if schedule.rank_of[source] != schedule.rank_of[target]:
                by_row.received[first + target] += num_bytes
            else:
                by_row.after[first + source] += num_bytes
                by_row.after[first + target] -= num_bytes
