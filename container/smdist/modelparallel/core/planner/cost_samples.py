# SPDX-License-Identifier: Apache-2.0
"""Graph and costs of one microbatch, for any microbatch size.

Recording a model's graph and measuring its costs takes long. So at first, this is done only for the
largest and the smallest microbatch. Costs of other sizes are interpolated linearly. Finally, the
model is recorded and measured at the microbatch size of the chosen plan.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from sagemaker_dist.errors import OptionError
from smdist.modelparallel.core.cost import Costs, NodeCost
from smdist.modelparallel.core.graph import Graph, Node
from smdist.modelparallel.core.placement import placed_units
from smdist.modelparallel.core.planner.problem import Problem


class SizeError(OptionError):
    """Error of a microbatch size at which the model cannot be recorded or measured.

    The attribute `kind` is "memory" if such a microbatch needs more than `device_memory`,
    "machine_memory" if this machine has too little memory to measure it, and otherwise "size".

    Attributes:
        num_microbatches: Number of microbatches of a batch at this size.
    """

    default_kind = "size"
    num_microbatches = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """Graph and costs of the model at one microbatch size.

    Attributes:
        num_microbatches: Number of microbatches of a batch at this size.
        graph: Graph of the model, with the bytes of values at this size.
        costs: Costs of the graph's nodes at this size.
        is_exact: True if the model was recorded and measured at this size. False if graph and
            costs were interpolated between two other sizes.
    """

    num_microbatches: int
    graph: Graph
    costs: Costs
    is_exact: bool


class Samples:
    """Graphs and costs of a model, for all microbatch sizes.

    At some sizes the model is recorded and measured. Other sizes are interpolated between these.

    Attributes:
        opened: Modules that are split, so that the modules inside them can be on different stages.
    """

    def __init__(self, problem: Problem, opened: frozenset[str], choices: tuple[int, ...]) -> None:
        self._problem = problem
        self.opened = opened
        self._ends = (min(choices), max(choices))
        self._exact: dict[int, View] = {}
        self._between: dict[int, View] = {}
        self._seconds: dict[tuple[int, bool], tuple[float, float]] = {}

    def exact(self, num_microbatches: int) -> View:
        """Return graph and costs of one microbatch, recorded and measured at exactly its size.

        The first call for a size takes seconds to minutes.

        Raises:
            SizeError: The model cannot be recorded or measured at this size.
        """
        if num_microbatches not in self._exact:
            graph, costs = self._problem.at(num_microbatches, self.opened)
            self._exact[num_microbatches] = View(
                num_microbatches=num_microbatches, graph=graph, costs=costs, is_exact=True
            )
            self._between.pop(num_microbatches, None)
        return self._exact[num_microbatches]

    def seconds(self, num_microbatches: int) -> tuple[float, float]:
        """Return the seconds of one microbatch in the whole model, and in its slowest module.

        Args:
            num_microbatches: Number of microbatches of a batch, which sets the microbatch size.
        """
        view = self.view(num_microbatches)
        key = (num_microbatches, view.is_exact)
        if key not in self._seconds:
            times = [view.costs.of(unit.name).seconds for unit in placed_units(view.graph)]
            total = sum(view.costs.of(node.name).seconds for node in view.graph.nodes)
            self._seconds[key] = (total, max(times, default=0.0))
        return self._seconds[key]

    @property
    def smallest(self) -> View:
        """Graph and costs of the smallest microbatch."""
        return self.exact(self._ends[1])

    def view(self, num_microbatches: int) -> View:
        """Return graph and costs of one microbatch.

        The result is interpolated if the model was not recorded and measured at this size.

        Args:
            num_microbatches: Number of microbatches of a batch, which sets the microbatch size.
        """
        if num_microbatches in self._exact:
            return self._exact[num_microbatches]
        if num_microbatches not in self._between:
            large, small = (self.exact(each) for each in self._ends)
            if num_microbatches in self._ends or not _alike(large.graph, small.graph):
                return self.exact(num_microbatches)
            line = _between(large, small, self._position(num_microbatches))
            self._between[num_microbatches] = replace(line, num_microbatches=num_microbatches)
        return self._between[num_microbatches]

    def _position(self, num_microbatches: int) -> float:
        """Return the relative size of a microbatch: 0 for the smallest one, 1 for the largest."""
        few, many = self._ends
        return (1 / num_microbatches - 1 / many) / (1 / few - 1 / many)


def _alike(one: Graph, other: Graph) -> bool:
    """Return True if two graphs have nodes and values with the same names and connections.

    Only then can sizes and costs between the two graphs be interpolated.
    """
    return [_outline(each) for each in one.nodes] == [_outline(each) for each in other.nodes]


def _outline(node: Node) -> tuple[str, tuple[str, ...], list[str]]:
    return node.name, node.reads, [value.name for value in node.writes]


def _between(large: View, small: View, position: float) -> View:
    """Return graph and costs interpolated linearly between two sizes of microbatches.

    Args:
        large: Graph and costs of the largest microbatch.
        small: Graph and costs of the smallest microbatch.
        position: Relative size of the result: 0 for `small`, 1 for `large`.
    """
    nodes = zip(large.graph.nodes, small.graph.nodes, strict=True)
    graph = replace(large.graph, nodes=tuple(_node(*pair, position) for pair in nodes))
    names = {**large.costs.nodes, **small.costs.nodes}
    costs = {name: _cost(large.costs.of(name), small.costs.of(name), position) for name in names}
    return View(
        num_microbatches=0,
        graph=graph,
        costs=replace(large.costs, nodes=costs),
        is_exact=False,
    )


def _node(large: Node, small: Node, position: float) -> Node:
    values = zip(large.writes, small.writes, strict=True)
    writes = tuple(
        replace(most, num_bytes=round(_line(most.num_bytes, least.num_bytes, position)))
        for most, least in values
    )
    return replace(large, writes=writes)


def _cost(large: NodeCost, small: NodeCost, position: float) -> NodeCost:
    return NodeCost(
        forward_seconds=_line(large.forward_seconds, small.forward_seconds, position),
        input_gradient_seconds=_line(
            large.input_gradient_seconds, small.input_gradient_seconds, position
        ),
        weight_gradient_seconds=_line(
            large.weight_gradient_seconds, small.weight_gradient_seconds, position
        ),
        saved_bytes=round(_line(large.saved_bytes, small.saved_bytes, position)),
        workspace_bytes=round(_line(large.workspace_bytes, small.workspace_bytes, position)),
        keeps=large.keeps,
    )


def _line(large: float, small: float, position: float) -> float:
    return small + (large - small) * position
