# SPDX-License-Identifier: Apache-2.0
"""A model as a chain of units, and what any run of neighbours on one stage costs.

Put every unit on a stage of its own, and `place` says where glue is and what travels. A stage is
a run of such units: what travels between two of them stays inside, and what they share (a
parameter, a mask that both compute) counts once. Runs that end at the same unit are grown from
their end towards the front, one unit at a time, so each costs as much as its newest unit has.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import islice
from typing import NamedTuple

from smdist.modelparallel.core.cost import Costs, NodeCost, StateBytes
from smdist.modelparallel.core.graph import Graph
from smdist.modelparallel.core.partition.keeping import Held, common_values
from smdist.modelparallel.core.placement import Edge, Placement, place, placed_units


class Span(NamedTuple):
    """What a run of units costs as one stage, for one microbatch.

    Bytes on the wire count both ways, where a gradient comes back. A value counts once where it
    leaves, however many stages want it, and once in each stage that it enters.
    """

    seconds: float
    state_bytes: int
    saved_bytes: int
    workspace_bytes: int
    num_messages: int
    wire_bytes: int
    received_bytes: int

    def memory_bytes(self, in_flight: int) -> int:
        """Parameters with their state, what is kept of each microbatch, and the workspace."""
        return self.state_bytes + in_flight * self.saved_bytes + self.workspace_bytes


class Message(NamedTuple):
    """A value that leaves the unit that writes it."""

    value: str
    num_messages: int
    wire_bytes: int
    last: int  # the last unit that wants it


@dataclass(slots=True, kw_only=True)
class Piece:
    """One unit of the chain, with its glue.

    Attributes:
        parameters: Bytes of each with its state.
        replicas: What it needs that other units compute for themselves too.
        sends: What leaves it.
        wants: What it gets from units before it.
        counted: Bytes of values that it saves, and that other units keep too.
        kept: Of values that it keeps, and that are in what other units save.
    """

    cost: NodeCost = field(default_factory=NodeCost)
    parameters: dict[str, int] = field(default_factory=dict)
    replicas: dict[str, NodeCost] = field(default_factory=dict)
    sends: list[Message] = field(default_factory=list)
    wants: list[Message] = field(default_factory=list)
    counted: dict[str, int] = field(default_factory=dict)
    kept: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Chain:
    """The units of a graph in the order of execution.

    Attributes:
        names: The units that a stage is chosen for.
        pieces: What each of them has to it.
    """

    names: tuple[str, ...]
    pieces: tuple[Piece, ...]

    def spans_ending(self, end: int) -> Iterator[Span]:
        """What units start to end - 1 cost as one stage, for start from end - 1 down to 0."""
        seconds, saved, workspace, state = 0.0, 0, 0, 0
        held: set[str] = set()
        copied: set[str] = set()
        open_ends, again = _OpenEnds(end), Held()
        for piece in self.pieces[end - 1 :: -1] if end else ():
            new = [cost for name, cost in piece.replicas.items() if name not in copied]
            for cost in (piece.cost, *new):
                seconds += cost.seconds
                saved += cost.saved_bytes
                workspace = max(workspace, cost.workspace_bytes)
            state += sum(n for name, n in piece.parameters.items() if name not in held)
            held.update(piece.parameters)
            copied.update(piece.replicas)
            open_ends.add(piece)
            again.add(piece.counted, piece.kept)
            yield Span(
                seconds,
                state,
                saved + again.num_bytes,
                workspace,
                open_ends.num_messages,
                open_ends.wire_bytes,
                open_ends.entering_bytes,
            )

    def span(self, start: int, end: int) -> Span:
        """What units start to end - 1 cost as one stage."""
        return next(islice(self.spans_ending(end), end - start - 1, None))


class _OpenEnds:
    """What enters and leaves a run of units that grows towards the front."""

    def __init__(self, end: int) -> None:
        self.num_messages = self.wire_bytes = self.entering_bytes = 0
        self._end = end
        self._entering: set[str] = set()

    def add(self, piece: Piece) -> None:
        """Put one more unit before the run: what it sends to the run enters no longer."""
        for message in piece.sends:
            if message.value in self._entering:
                self._entering.remove(message.value)
                self._enter(message, -1)
            if message.last >= self._end:
                self._count(message, 1)
        for message in piece.wants:
            if message.value not in self._entering:
                self._entering.add(message.value)
                self._enter(message, 1)

    def _enter(self, message: Message, sign: int) -> None:
        self.entering_bytes += sign * message.wire_bytes
        self._count(message, sign)

    def _count(self, message: Message, sign: int) -> None:
        self.num_messages += sign * message.num_messages
        self.wire_bytes += sign * message.wire_bytes


def chain_of(graph: Graph, costs: Costs, state: StateBytes) -> Chain:
    """The chain of a graph's units."""
    names = tuple(node.name for node in placed_units(graph))
    alone = place(graph, {name: number for number, name in enumerate(names)})
    pieces = tuple(Piece() for _ in names)
    for node in graph.nodes:
        cost, where = costs.of(node.name), alone.stages[node.name]
        for number in where:
            piece = pieces[number]
            if len(where) == 1:
                piece.cost = piece.cost + cost
            elif cost != NodeCost():
                piece.replicas[node.name] = cost
            for name in node.parameters:
                piece.parameters[name] = state.of(graph.parameter[name])
    for value, common in common_values(graph, costs).items():
        for number in alone.stages[common.first]:
            pieces[number].counted[value] = common.num_bytes
        for number in {each for name in common.others for each in alone.stages[name]}:
            pieces[number].kept[value] = common.num_bytes
    _join(pieces, alone)
    return Chain(names=names, pieces=pieces)


def _join(pieces: tuple[Piece, ...], alone: Placement) -> None:
    farthest: dict[str, Edge] = {}
    for edge in alone.edges:
        if edge.value not in farthest or edge.target > farthest[edge.value].target:
            farthest[edge.value] = edge
    messages = {
        value: Message(value, ways_of(edge), ways_of(edge) * edge.num_bytes, edge.target)
        for value, edge in farthest.items()
    }
    for edge in alone.edges:
        pieces[edge.target].wants.append(messages[edge.value])
    for value, edge in farthest.items():
        pieces[edge.source].sends.append(messages[value])


def ways_of(edge: Edge) -> int:
    """2 where a gradient comes back, otherwise 1."""
    return 2 if edge.has_gradient else 1
