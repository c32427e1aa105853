# SPDX-License-Identifier: Apache-2.0
"""Memory that a rank holds during each of its actions, computed from the order of actions.

    held = static + saved activations + receive buffers + workspace

* Static memory consists of weights, gradients and optimizer state.
* Saved activations of a microbatch are held from the start of its forward pass to the end of its
  backward pass. A split backward pass ends with the weight gradients.
* A receive starts one action early. So a rank holds the receive buffers of the running action and
  of the next one.
* A value between two stages of the same rank needs no receive buffer. The value is held until the
  action that reads the value ends.
* The workspace of a stage is held while one of its actions runs.

A value that waits to be sent is counted as a saved activation. The batch is not counted.
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
    """Bytes that each kind of action allocates and frees on each stage, for one microbatch.

    The kinds are forward pass (F), backward pass (B), input gradients (I) and weight gradients (W).
    Each list contains F of all stages, then B of all stages, then I and W.

    Attributes:
        saved: Bytes of activations that are allocated when the action starts.
        received: Bytes of receive buffers for the action's inputs.
        workspace: Bytes of workspace while the action runs.
        after: Change of the held bytes when the action ends; negative if memory is freed.
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
        rows: Number that stands for the kind and stage of each action, as in `Tables.rows`.
        stages: Cost of each stage for one microbatch.
        edges: Values sent between stages.
        static_bytes: Bytes that each rank holds all the time, by rank.

    Returns:
        Two tuples with one item for each rank: the bytes held during each action of the rank, and
        the rank's peak.
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
    """Add the bytes of values that stages send to each other in the forward or backward pass.

    If sender and receiver are on different ranks, the bytes are added as receive buffers. On the
    same rank they are held from the sending action to the receiving action.

    Args:
        by_row: Memory of all actions, to which the bytes are added.
        schedule: Schedule of the step.
        does: Kinds of actions that send and receive in this pass.
        traffic: Bytes that stages send to each other in this pass.
    """
    for first in (ROW[do] * schedule.num_stages for do in does):
        for source, target, num_bytes in traffic:
            if schedule.rank_of[source] != schedule.rank_of[target]:
                by_row.received[first + target] += num_bytes
            else:
                by_row.after[first + source] += num_bytes
                by_row.after[first + target] -= num_bytes
