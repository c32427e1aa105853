# SPDX-License-Identifier: Apache-2.0
"""Schedule as tables of numbers, so that the simulator's loop uses only lists and integers.

A *row* stands for one kind of action of one stage, for any microbatch: F of stage 0, F of stage 1,
.., B of stage 0, and so on. A *cell* counts the messages that one action waits for:

    row    Do.F + stage | Do.B + stage | Do.I + stage | Do.W + stage      (Do.X times num_stages)
    cell   F of a stage and microbatch | B or I of them | W of them

B and I share cells, because both wait for the same gradients. The sends of a row name the cells
that receive its messages.
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
LOCAL = -1  # channel between two stages of one rank, which takes no time


class Send(NamedTuple):
    """Message from an action to another action on the same microbatch.

    Attributes:
        cell: Cell of the receiving action, for microbatch 0.
        channel: Number of the ordered pair of ranks, or LOCAL.
        busy_seconds: Time that the message occupies the channel.
        latency_seconds: Time that the message travels after that.
    """

    cell: int
    channel: int
    busy_seconds: float
    latency_seconds: float


class StageTraffic(NamedTuple):
    """Sum of all values from one stage to another, in one direction."""

    source: int
    target: int
    num_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Tables:
    """Tables that the simulator's loop reads.

    Attributes:
        rows: Rows of each rank's actions, in order.
        cells: Cells of each rank's actions, in order.
        seconds: Time of an action, by row.
        sends: Messages of an action, by row.
        missing: Number of messages that an action waits for, by cell.
        rank_of: Rank of an action, by cell // num_microbatches.
        num_microbatches: Number of microbatches of a step.
        num_channels: Number of ordered pairs of ranks that exchange messages.
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
    """Return edges of 0 bytes from each stage to the next, for a pipeline without given edges."""
    return tuple(
        Edge(value="", source=stage, target=stage + 1, num_bytes=0, has_gradient=True)
        for stage in range(num_stages - 1)
    )


def forward_traffic(edges: Iterable[Edge]) -> list[StageTraffic]:
    """Return the traffic from stage to stage in the forward pass."""
    return _added((edge.source, edge.target, edge.num_bytes) for edge in edges)


def backward_traffic(edges: Iterable[Edge]) -> list[StageTraffic]:
    """Return the traffic from stage to stage in the backward pass."""
    return _added((edge.target, edge.source, edge.num_bytes) for edge in edges if edge.has_gradient)


def _added(flows: Iterable[tuple[int, int, int]]) -> list[StageTraffic]:
    total: dict[tuple[int, int], int] = {}
    for source, target, num_bytes in flows:
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
    """Return the tables of a schedule with these costs, edges and links."""
    rows, cells = _numbered(schedule)
    sends, num_channels = _sends(schedule, edges, link)
    return Tables(
        rows=rows,
        cells=cells,
        seconds=[
            *(cost.forward_seconds for cost in stages),
            *(cost.backward_seconds for cost in stages),
            *(cost.input_gradient_seconds for cost in stages),
            *(cost.weight_gradient_seconds for cost in stages),
        ],
        sends=sends,
        missing=_missing(schedule, edges),
        rank_of=schedule.rank_of * 3,  # cells of F, of B or I, of W
        num_microbatches=schedule.num_microbatches,
        num_channels=num_channels,
    )


def _numbered(schedule: Schedule) -> tuple[tuple[list[int], ...], tuple[list[int], ...]]:
    """Return the rows and the cells of every rank's actions."""
    num_stages, num_microbatches = schedule.num_stages, schedule.num_microbatches
    row = {do: number * num_stages for do, number in ROW.items()}
    cell = {do: number * num_stages for do, number in CELL.items()}

    def number(action: Action) -> int:
        return (cell[action.do] + action.stage) * num_microbatches + action.microbatch

    return (
        tuple([row[action.do] + action.stage for action in order] for order in schedule.orders),
        tuple([number(action) for action in order] for order in schedule.orders),
    )


def _sends(
    schedule: Schedule, edges: Sequence[Edge], link: Callable[[int, int], Link]
) -> tuple[list[tuple[Send, ...]], int]:
    """Return the messages of each row, and the number of channels."""
    num_stages, num_microbatches = schedule.num_stages, schedule.num_microbatches
    sends: list[list[Send]] = [[] for _ in range(len(ROW) * num_stages)]
    channels: dict[tuple[int, int], int] = {}

    def add(do: Do, stage: int, heard: Do, traffic: StageTraffic) -> None:
        cell = (CELL[heard] * num_stages + traffic.target) * num_microbatches
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
    num_stages = schedule.num_stages
    missing = [0] * num_stages + [1] * (2 * num_stages)  # B and I wait for F, W for I
    for traffic in forward_traffic(edges):
        missing[CELL[Do.F] * num_stages + traffic.target] += 1
    for traffic in backward_traffic(edges):
        missing[CELL[Do.B] * num_stages + traffic.target] += 1
    return [number for number in missing for _ in range(schedule.num_microbatches)]
