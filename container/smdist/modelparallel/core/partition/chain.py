# SPDX-License-Identifier: Apache-2.0
"""Model as a chain of units, and the cost of any run of neighbouring units as one stage.

`place` puts every unit on a stage of its own, and so gives the place of glue and the messages. A
stage is a run of such units: messages between two of its units stay inside, and anything that they
share (a parameter, a mask that both compute) counts once. Runs that end at the same unit are grown
from their end towards the front, one unit at a time, so each run costs only the work for its newest
unit.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import islice
from typing import NamedTuple

from smdist.modelparallel.core.cost import Costs, NodeCost, StateBytes
from smdist.modelparallel.core.graph import Graph
from smdist.modelparallel.core.partition.shared_activations import SharedActivations, common_values
from smdist.modelparallel.core.placement import Edge, Placement, place, placed_units


class StageCost(NamedTuple):
    """Cost of a run of units as one stage, for one microbatch.

    Messages and their bytes count both directions if a gradient comes back. A value counts once on
    the stage that it leaves, even if several stages read it, and once on each stage that it enters.
    """

    seconds: float
    state_bytes: int
    saved_bytes: int
    workspace_bytes: int
    num_messages: int
    wire_bytes: int
    received_bytes: int

    def memory_bytes(self, in_flight: int) -> int:
        """Return the bytes of state, saved values of `in_flight` microbatches, and workspace."""
        return self.state_bytes + in_flight * self.saved_bytes + self.workspace_bytes


class Message(NamedTuple):
    """Value that leaves the unit that writes it."""

    value: str
    num_messages: int
    wire_bytes: int
    last: int  # the last unit that reads it


@dataclass(slots=True, kw_only=True)
class ChainUnit:
    """Unit of the chain, with its glue.

    Attributes:
        cost: Cost of the unit and its glue, without replicated nodes.
        parameters: Bytes of each parameter with its state.
        replicas: Costs of replicated nodes, which other units compute too, by name.
        sends: Values that leave the unit.
        wants: Values that the unit receives from earlier units.
        counted: Bytes of values in the unit's saved bytes that other units keep too.
        kept: Bytes of values that the unit keeps and that count in other units' saved bytes.
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
    """Units of a graph in the order of execution.

    Attributes:
        names: Names of the units that need a stage.
        pieces: Cost and messages of each unit.
    """

    names: tuple[str, ...]
    pieces: tuple[ChainUnit, ...]

    def spans_ending(self, end: int) -> Iterator[StageCost]:
        """Yield the cost of units start to end - 1 as one stage, for start = end - 1 down to 0."""
        seconds, saved, workspace, state = 0.0, 0, 0, 0
        held: set[str] = set()
        copied: set[str] = set()
        open_ends, again = _OpenEnds(end), SharedActivations()
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
            yield StageCost(
                seconds,
                state,
                saved + again.num_bytes,
                workspace,
                open_ends.num_messages,
                open_ends.wire_bytes,
                open_ends.entering_bytes,
            )

    def span(self, start: int, end: int) -> StageCost:
        """Return the cost of units start to end - 1 as one stage."""
        return next(islice(self.spans_ending(end), end - start - 1, None))


class _OpenEnds:
    """Messages that enter and leave a run of units that grows towards the front."""

    def __init__(self, end: int) -> None:
        self.num_messages = self.wire_bytes = self.entering_bytes = 0
        self._end = end
        self._entering: set[str] = set()

    def add(self, piece: ChainUnit) -> None:
        """Add the unit before the run: values that it sends to the run no longer enter the run."""
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
    """Return the chain of a graph's units."""
    names = tuple(node.name for node in placed_units(graph))
    alone = place(graph, {name: number for number, name in enumerate(names)})
    pieces = tuple(ChainUnit() for _ in names)
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


def _join(pieces: tuple[ChainUnit, ...], alone: Placement) -> None:
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
    """Return 2 if a gradient comes back along the edge, otherwise 1."""
    return 2 if edge.has_gradient else 1
