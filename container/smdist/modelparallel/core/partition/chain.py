# SPDX-License-Identifier: Apache-2.0
"""Model as a chain of units, and the cost of several consecutive units as one stage.

A unit is a module that is not split further. A span is several consecutive units as one stage.
Messages between the units of a span are not sent. A parameter that several units of a span use
counts once.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import islice
from typing import NamedTuple

from smdist.modelparallel.core.cost import Costs, NodeCost, StateBytes
from smdist.modelparallel.core.graph import Graph
from smdist.modelparallel.core.partition.shared_activations import SharedActivations, shared_values
from smdist.modelparallel.core.placement import Edge, Placement, place, placed_units


class SpanCost(NamedTuple):
    """Cost of consecutive units as one stage, for one microbatch.

    A message whose gradient is sent back counts twice, and so do its bytes. A value that several
    stages receive counts once at the stage that sends it, and once at each receiving stage.

    Attributes:
        seconds: Seconds of the forward and backward passes, without messages.
        state_bytes: Bytes of parameters, gradients and optimizer state.
        saved_bytes: Bytes of activations kept for the backward pass.
        workspace_bytes: Bytes that are needed only while a pass runs.
        num_messages: Number of sent and received messages.
        wire_bytes: Bytes of all these messages.
        received_bytes: Bytes of the messages for values that enter the stage, gradients included.
    """

    seconds: float
    state_bytes: int
    saved_bytes: int
    workspace_bytes: int
    num_messages: int
    wire_bytes: int
    received_bytes: int

    def memory_bytes(self, in_flight: int) -> int:
        """Return the bytes of memory that the stage needs: state, activations and workspace.

        Args:
            in_flight: Number of microbatches whose activations are kept at the same time.
        """
        return self.state_bytes + in_flight * self.saved_bytes + self.workspace_bytes


class Message(NamedTuple):
    """Value that one module sends to a later one, with the bytes of the value and its gradient."""

    value: str
    num_messages: int
    wire_bytes: int
    last: int  # position of the last unit that reads it


@dataclass(slots=True, kw_only=True)
class ChainUnit:
    """Module that is not split further (unit), with the operations that run on its stage.

    A shared activation is an activation that several nodes of the graph keep. The cost of only one
    of these nodes includes the bytes of the activation.

    Attributes:
        cost: Cost of the unit and the operations, without `replicas`.
        parameters: Bytes of each parameter with its gradient and optimizer state, by name.
        replicas: Costs of nodes that several units compute for themselves, such as masks, by name.
        sends: Values that the unit sends to later units.
        receives: Values that the unit receives from earlier units.
        counted_here: Bytes of shared activations that the unit's cost includes, by name.
        counted_elsewhere: Bytes of shared activations that the unit keeps, but that another
            node's cost includes, by name.
    """

    cost: NodeCost = field(default_factory=NodeCost)
    parameters: dict[str, int] = field(default_factory=dict)
    replicas: dict[str, NodeCost] = field(default_factory=dict)
    sends: list[Message] = field(default_factory=list)
    receives: list[Message] = field(default_factory=list)
    counted_here: dict[str, int] = field(default_factory=dict)
    counted_elsewhere: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Chain:
    """Modules of a model in the order of execution; each runs as a whole on one stage.

    Attributes:
        names: Names of the modules that are assigned to stages.
        units: Cost of each of these modules, and the tensors that it sends to later ones.
    """

    names: tuple[str, ...]
    units: tuple[ChainUnit, ...]

    def spans_ending(self, end: int) -> Iterator[SpanCost]:
        """Yield the costs of all spans that end before unit `end`, the shortest span first.

        A span has the units start, ..., end - 1 as one stage, for start = end - 1 down to 0.
        """
        seconds, saved, workspace, state = 0.0, 0, 0, 0
        held: set[str] = set()
        copied: set[str] = set()
        crossing, shared = _CrossingMessages(end), SharedActivations()
        for unit in self.units[end - 1 :: -1] if end else ():
            new = [cost for name, cost in unit.replicas.items() if name not in copied]
            for cost in (unit.cost, *new):
                seconds += cost.seconds
                saved += cost.saved_bytes
                workspace = max(workspace, cost.workspace_bytes)
            state += sum(n for name, n in unit.parameters.items() if name not in held)
            held.update(unit.parameters)
            copied.update(unit.replicas)
            crossing.add(unit)
            shared.add(unit.counted_here, unit.counted_elsewhere)
            yield SpanCost(
                seconds,
                state,
                saved + shared.num_bytes,
                workspace,
                crossing.num_messages,
                crossing.wire_bytes,
                crossing.entering_bytes,
            )

    def span(self, start: int, end: int) -> SpanCost:
        """Return the cost of the units start, ..., end - 1 as one stage."""
        return next(islice(self.spans_ending(end), end - start - 1, None))


class _CrossingMessages:
    """Number and bytes of the messages (values and gradients) to and from a stage."""

    def __init__(self, end: int) -> None:
        self.num_messages = self.wire_bytes = self.entering_bytes = 0
        self._end = end
        self._entering: set[str] = set()

    def add(self, unit: ChainUnit) -> None:
        """Add `unit` as the first module of the stage, and update the counts of messages."""
        for message in unit.sends:
            if message.value in self._entering:
                self._entering.remove(message.value)
                self._enter(message, -1)
            if message.last >= self._end:
                self._count(message, 1)
        for message in unit.receives:
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
    """Return the modules of a graph in the order of execution, with costs and sent values.

    Args:
        graph: Graph of the model.
        costs: Costs of the graph's nodes for one microbatch.
        state: Bytes of weight, gradient and optimizer state for each parameter element.
    """
    names = tuple(node.name for node in placed_units(graph))
    alone = place(graph, {name: number for number, name in enumerate(names)})
    units = tuple(ChainUnit() for _ in names)
    for node in graph.nodes:
        cost, where = costs.of(node.name), alone.stages[node.name]
        for number in where:
            unit = units[number]
            if len(where) == 1:
                unit.cost = unit.cost + cost
            elif cost != NodeCost():
                unit.replicas[node.name] = cost
            for name in node.parameters:
                unit.parameters[name] = state.of(graph.parameter[name])
    for value, common in shared_values(graph, costs).items():
        for number in alone.stages[common.first]:
            units[number].counted_here[value] = common.num_bytes
        for number in {each for name in common.others for each in alone.stages[name]}:
            units[number].counted_elsewhere[value] = common.num_bytes
    _connect(units, alone)
    return Chain(names=names, units=units)


def _connect(units: tuple[ChainUnit, ...], alone: Placement) -> None:
    farthest: dict[str, Edge] = {}
    for edge in alone.edges:
        if edge.value not in farthest or edge.target > farthest[edge.value].target:
            farthest[edge.value] = edge
    messages = {
        value: Message(value, ways_of(edge), ways_of(edge) * edge.num_bytes, edge.target)
        for value, edge in farthest.items()
    }
    for edge in alone.edges:
        units[edge.target].receives.append(messages[edge.value])
    for value, edge in farthest.items():
        units[edge.source].sends.append(messages[value])


def ways_of(edge: Edge) -> int:
    """Return the number of messages for a value that one stage sends to another.

    The number is 2 if the gradient of the value is sent back, otherwise 1.
    """
    return 2 if edge.has_gradient else 1
