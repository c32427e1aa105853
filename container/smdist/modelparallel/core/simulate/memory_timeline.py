# SPDX-License-Identifier: Apache-2.0
"""Memory of a rank during each of its actions, computed from their order without times.

    held = static + saved activations + receive buffers + workspace

* Saved activations of a stage and microbatch are held from the start of F to the end of B, or to
  the end of W if the backward pass is split.
* A receive is posted one action ahead, and its buffer is freed after the action that uses it. So
  during an action a rank holds the buffers of this action and of the next one. A value between two
  stages of the same rank needs no buffer; it is held from the end of the action that computes it to
  the end of the action that reads it.
* The workspace of a stage is held during its action.

Values that wait to be sent are not counted again: they are saved activations of their stage. The
batch is not counted either: microbatches are views of memory that the caller holds in any case.
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
    """Bytes that an action allocates and frees.

    Each list has one entry for each row. A row is the number of a kind of action on one stage.

    Attributes:
        saved: Bytes of activations that are allocated at the action's start.
        received: Bytes of receive buffers during the action and the action before it.
        workspace: Bytes of workspace during the action.
        after: Change of held bytes at the action's end; negative if more is freed than kept.
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
    """Return the bytes that each rank holds during its actions, and the peak of each rank.

    Args:
        schedule: Schedule of the step.
        rows: Number of the kind and stage of each action, by rank and position in its order.
        stages: Cost of each stage for one microbatch.
        edges: Values sent between stages.
        static_bytes: Bytes that each rank holds all the time, by rank.

    Returns:
        Bytes by rank and position of the action, and the peak by rank.
    """
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
    _add_traffic(by_row, schedule, (Do.F,), forward)
    _add_traffic(by_row, schedule, (Do.B, Do.I), backward)
    return by_row


def _add_traffic(
    by_row: _Bytes, schedule: Schedule, does: Iterable[Do], traffic: list[StageTraffic]
) -> None:
    """Add the bytes of values that stages receive, in the forward or in the backward pass.

    They are buffers if sender and receiver are on different ranks, otherwise values held within a
    rank.

    Args:
        by_row: Bytes by kind of action and stage; its lists are changed.
        schedule: Schedule of the step.
        does: Kinds of actions of this pass: F, or B and I.
        traffic: Bytes that stages send to each other in this pass.
    """
    for first in (ROW[do] * schedule.num_stages for do in does):
        for source, target, num_bytes in traffic:
            if schedule.rank_of[source] != schedule.rank_of[target]:
                by_row.received[first + target] += num_bytes
            else:
                by_row.after[first + source] += num_bytes
                by_row.after[first + target] -= num_bytes
