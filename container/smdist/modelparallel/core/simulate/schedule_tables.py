# SPDX-License-Identifier: Apache-2.0
"""Tables of numbers for a schedule, so that the simulator's loop uses only lists and integers.

A *row* is an index into lists that have one entry for each kind of action (F, B, I or W) of each
stage. Entries of these lists have the order

    F of stage 0, F of stage 1, ..., B of stage 0, ..., I of stage 0, ..., W of stage 0, ...

Costs are stored in such lists, because all microbatches have the same costs.

A *cell* is an index into lists that have one entry for each single action: kind, stage and
microbatch. The number of missing inputs is stored in such a list. B and I of a stage and microbatch
have the same cell, because both wait for the same gradients.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from smdist.modelparallel.core.cost import Link, NodeCost
from smdist.modelparallel.core.placement import Edge
from smdist.modelparallel.core.schedule.actions import Action, Do, Schedule

ROW = {Do.F: 0, Do.B: 1, Do.I: 2, Do.W: 3}
CELL = {Do.F: 0, Do.B: 1, Do.I: 1, Do.W: 2}
LOCAL = -1  # number of the channel between stages of one rank, whose messages take no time


class Send(NamedTuple):
    """Message from an action to another action on the same microbatch.

    Attributes:
        cell: Cell of the receiving action for microbatch 0; see `Tables`. For another microbatch,
            add its number.
        channel: Number of the channel from the sending to the receiving rank; -1 (LOCAL) if both
            actions are on the same rank.
        busy_seconds: Seconds in which the message occupies the channel.
        latency_seconds: Seconds from the end of `busy_seconds` until the message arrives.
    """

    cell: int
    channel: int
    busy_seconds: float
    latency_seconds: float


class StageTraffic(NamedTuple):
    """Number of bytes that stage `source` sends to stage `target` for one microbatch."""

    source: int
    target: int
    num_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Tables:
    """Order, durations and messages of the actions of a step, as lists for the simulator's loop.

    A row is a number for the kind and stage of an action. A cell is a number for the kind, stage
    and microbatch of an action. Rows and cells are indices into the other lists.

    Attributes:
        rows: Row of each action, by rank and position in the rank's order.
        cells: Cell of each action, by rank and position in the rank's order.
        seconds: Seconds of an action, by row.
        sends: Messages that an action sends when it ends, by row.
        missing: Number of messages that an action waits for, by cell.
        rank_of: Rank that runs an action; the index is cell // num_microbatches.
        num_microbatches: Number of microbatches of a step.
        num_channels: Number of channels: pairs of a sending and a receiving rank.
    """

    rows: tuple[list[int], ...]
    cells: tuple[list[int], ...]
    seconds: list[float]
    sends: list[tuple[Send, ...]]
    missing: list[int]
    rank_of: tuple[int, ...]
    num_microbatches: int
    num_channels: int


def chain(num_stages: int) -> tuple[Edge, ...]:
    """Return an edge from each stage to the next stage, for a value of 0 bytes."""
    return tuple(
        Edge(value="", source=stage, target=stage + 1, num_bytes=0, has_gradient=True)
        for stage in range(num_stages - 1)
    )


def forward_traffic(edges: Iterable[Edge]) -> list[StageTraffic]:
    """Return the bytes that stages send to each other in the forward pass of a microbatch."""
    return _summed((edge.source, edge.target, edge.num_bytes) for edge in edges)


def backward_traffic(edges: Iterable[Edge]) -> list[StageTraffic]:
    """Return the bytes that stages send to each other in the backward pass of a microbatch."""
    return _summed(
        (edge.target, edge.source, edge.num_bytes) for edge in edges if edge.has_gradient
    )


def _summed(values: Iterable[tuple[int, int, int]]) -> list[StageTraffic]:
    """Return the total bytes for each pair of stages.

    Args:
        values: (source stage, target stage, bytes) of each value.
    """
    total: dict[tuple[int, int], int] = {}
    for source, target, num_bytes in values:
        total[source, target] = total.get((source, target), 0) + num_bytes
    return [
        StageTraffic(source, target, num_bytes) for (source, target), num_bytes in total.items()
    ]


def tables(
    schedule: Schedule,
    stages: Sequence[NodeCost],
    edges: Sequence[Edge],
    link: Callable[[int, int], Link],
) -> Tables:
    """Return the order, durations and messages of a schedule's actions for the simulator's loop.

    Args:
        schedule: Schedule of the step.
        stages: Cost of each stage for one microbatch.
        edges: Values sent between stages.
        link: Function that returns the link from one rank of the pipeline to another.
    """
    rows, cells = _numbered(schedule)
    sends, num_channels = sends_between(schedule, edges, link)
    return Tables(
        rows=rows,
        cells=cells,
        seconds=seconds_by_row(stages),
        sends=sends,
        missing=_missing(schedule, edges),
        rank_of=schedule.rank_of * 3,  # for F, for B or I, and for W
        num_microbatches=schedule.num_microbatches,
        num_channels=num_channels,
    )


def seconds_by_row(stages: Sequence[NodeCost]) -> list[float]:
    """Return the durations of the actions of each stage, as in `Tables.seconds`."""
    return [
        *(cost.forward_seconds for cost in stages),
        *(cost.backward_seconds for cost in stages),
        *(cost.input_gradient_seconds for cost in stages),
        *(cost.weight_gradient_seconds for cost in stages),
    ]


def _numbered(schedule: Schedule) -> tuple[tuple[list[int], ...], tuple[list[int], ...]]:
    """Return the row and the cell of every action, each by rank and position in its order.

    A row is the index of the action's kind and stage. A cell is the index of its kind, stage and
    microbatch.
    """
    num_stages, num_microbatches = schedule.num_stages, schedule.num_microbatches
    row = {do: number * num_stages for do, number in ROW.items()}
    cell = {do: number * num_stages for do, number in CELL.items()}

    def number(action: Action) -> int:
        return (cell[action.do] + action.stage) * num_microbatches + action.microbatch

    return (
        tuple([row[action.do] + action.stage for action in order] for order in schedule.orders),
        tuple([number(action) for action in order] for order in schedule.orders),
    )


def sends_between(
    schedule: Schedule, edges: Sequence[Edge], link: Callable[[int, int], Link]
) -> tuple[list[tuple[Send, ...]], int]:
    """Return the messages that actions send, and the number of channels.

    The list of messages is `Tables.sends`: one tuple for each kind of action and stage. A channel
    goes from one rank to another.
    """
    num_stages, num_microbatches = schedule.num_stages, schedule.num_microbatches
    sends: list[list[Send]] = [[] for _ in range(len(ROW) * num_stages)]
    channels: dict[tuple[int, int], int] = {}

    def add(do: Do, stage: int, receiver: Do, traffic: StageTraffic) -> None:
        cell = (CELL[receiver] * num_stages + traffic.target) * num_microbatches
        ranks = schedule.rank_of[traffic.source], schedule.rank_of[traffic.target]
        send = Send(cell, LOCAL, 0.0, 0.0)
        if ranks[0] != ranks[1]:
            wire = link(*ranks)
            busy = traffic.num_bytes / wire.bytes_per_second
            channel = channels.setdefault(ranks, len(channels))
            send = Send(cell, channel, busy, wire.latency_seconds)
        sends[ROW[do] * num_stages + stage].append(send)

    for traffic in forward_traffic(edges):
        add(Do.F, traffic.source, Do.F, traffic)
    for traffic in backward_traffic(edges):
        add(Do.B, traffic.source, Do.B, traffic)
        add(Do.I, traffic.source, Do.B, traffic)
    for stage in range(num_stages):
        add(Do.F, stage, Do.B, StageTraffic(stage, stage, 0))
        add(Do.I, stage, Do.W, StageTraffic(stage, stage, 0))
    return [tuple(row) for row in sends], len(channels)


def _missing(schedule: Schedule, edges: Sequence[Edge]) -> list[int]:
    """Return the number of messages that each action waits for, as in `Tables.missing`."""
    num_stages = schedule.num_stages
    missing = [0] * num_stages + [1] * (2 * num_stages)  # B and I wait for F, W for I
    for traffic in forward_traffic(edges):
        missing[CELL[Do.F] * num_stages + traffic.target] += 1
    for traffic in backward_traffic(edges):
        missing[CELL[Do.B] * num_stages + traffic.target] += 1
    return [number for number in missing for _ in range(schedule.num_microbatches)]
