# SPDX-License-Identifier: Apache-2.0
"""A schedule in numbers, so that the simulator's loop touches lists and integers alone.

A *row* is what one stage does, whatever the microbatch: F of stage 0, F of stage 1, .., B of
stage 0, and so on. A *cell* is where the messages for one action are counted:

    row    Do.F + stage | Do.B + stage | Do.I + stage | Do.W + stage      (Do.X times num_stages)
    cell   F of a stage and microbatch | B or I of them | W of them

B and I share cells: both wait for the same gradients. A row's sends say which cells hear of it.
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
LOCAL = -1  # the channel between two stages of one rank: no time passes


class Send(NamedTuple):
    """What an action tells another stage's action on the same microbatch when it is done.

    Attributes:
        cell: Of microbatch 0.
        channel: Number of the ordered pair of ranks, or LOCAL.
        busy_seconds: How long the message keeps the next one from leaving.
        latency_seconds: How long it is under way after that.
    """

    cell: int
    channel: int
    busy_seconds: float
    latency_seconds: float


class Traffic(NamedTuple):
    """All values from one stage to another, added up, and one way."""

    source: int
    target: int
    num_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Tables:
    """What the simulator's loop reads.

    Attributes:
        rows: Of each rank's actions, in order.
        cells: Likewise.
        seconds: By row.
        sends: By row.
        missing: How many messages an action waits for, by cell.
        rank_of: By cell // num_microbatches.
        num_microbatches: How many go through.
        num_channels: How many ordered pairs of ranks exchange messages.
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
    """Edges of no bytes from each stage to the next, where nobody said what flows."""
    return tuple(
        Edge(value="", source=stage, target=stage + 1, num_bytes=0, has_gradient=True)
        for stage in range(num_stages - 1)
    )


def forward_traffic(edges: Iterable[Edge]) -> list[Traffic]:
    """What flows from stage to stage in the forward pass."""
    return _added((edge.source, edge.target, edge.num_bytes) for edge in edges)


def backward_traffic(edges: Iterable[Edge]) -> list[Traffic]:
    """What flows back."""
    return _added((edge.target, edge.source, edge.num_bytes) for edge in edges if edge.has_gradient)


def _added(flows: Iterable[tuple[int, int, int]]) -> list[Traffic]:
    total: dict[tuple[int, int], int] = {}
    for source, target, num_bytes in flows:
        total[source, target] = total.get((source, target), 0) + num_bytes
    return [Traffic(source, target, num_bytes) for (source, target), num_bytes in total.items()]


def tables(
    schedule: Schedule,
    stages: Sequence[NodeCost],
    edges: Sequence[Edge],
    link: Callable[[int, int], Link],
) -> Tables:
    """Everything in numbers."""
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
    """The rows and the cells of every rank's actions."""
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
    """Who hears of each row, and the number of channels."""
    num_stages, num_microbatches = schedule.num_stages, schedule.num_microbatches
    sends: list[list[Send]] = [[] for _ in range(len(ROW) * num_stages)]
    channels: dict[tuple[int, int], int] = {}

    def add(do: Do, stage: int, heard: Do, traffic: Traffic) -> None:
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
        add(Do.F, stage, Do.B, Traffic(stage, stage, 0))
        add(Do.I, stage, Do.W, Traffic(stage, stage, 0))
    return [tuple(row) for row in sends], len(channels)


def _missing(schedule: Schedule, edges: Sequence[Edge]) -> list[int]:
    num_stages = schedule.num_stages
    missing = [0] * num_stages + [1] * (2 * num_stages)  # B and I wait for F, W for I
    for traffic in forward_traffic(edges):
        missing[CELL[Do.F] * num_stages + traffic.target] += 1
    for traffic in backward_traffic(edges):
        missing[CELL[Do.B] * num_stages + traffic.target] += 1
    return [number for number in missing for _ in range(schedule.num_microbatches)]
