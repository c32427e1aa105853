# SPDX-License-Identifier: Apache-2.0
"""Layers of a captured model, from its graph and the costs of one microbatch."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from smdist.modelparallel.core.cost import Costs, NodeCost
from smdist.modelparallel.core.graph import Graph, Node, NodeKind
from smdist.modelparallel.core.layout.layer_model import Layer, LayerModel
from smdist.modelparallel.core.layout.machine import Machine

_ESTIMATED = "estimated"
_WORTH = 2.0  # a layer that keeps at least this many times its output is worth a checkpoint
_TYPICAL = 4096.0  # size of products for which the device's efficiency is taken


@dataclass(slots=True)
class _Part:
    """Unit of the model with the operations that follow it."""

    name: str
    cost: NodeCost = field(default_factory=NodeCost)
    num_parameters: int = 0
    output_bytes: int = 0


def layers_of(graph: Graph, costs: Costs, machine: Machine, *, samples: int) -> LayerModel:
    """Return the layers of a captured model: its units in the order of execution.

    All costs are taken as proportional to the number of samples. Estimated seconds are those of the
    device's peak; they are divided by the efficiency that products of matrices reach. Whether
    tensor parallelism can split a unit is not in a graph, so that no layer is split.

    Args:
        graph: Graph of one microbatch.
        costs: Costs of the graph's nodes.
        machine: Machine, for the efficiency of estimated costs.
        samples: Samples of the microbatch.
    """
    reached = machine.product_efficiency(_TYPICAL) if costs.source == _ESTIMATED else 1.0
    layers = tuple(_layer(part, samples, reached) for part in _parts(graph, costs))
    return LayerModel(name=graph.model, layers=layers)


def checkpointed(graph: Graph, costs: Costs, kind: str) -> tuple[str, ...]:
    """Return the modules that a kind of checkpointing checkpoints, in the order of execution.

    Args:
        graph: Graph of one microbatch.
        costs: Costs of the graph's nodes.
        kind: "full" for all layers that are worth it, "selective" for every second one.
    """
    worth = [part.name for part in _parts(graph, costs) if _is_worth(part)]
    modules = [graph.node[name].module for name in worth]
    return tuple(dict.fromkeys(modules[:: 2 if kind == "selective" else 1]))


def _parts(graph: Graph, costs: Costs) -> Iterator[_Part]:
    """Yield the units of a graph; operations before the first unit belong to it."""
    part, seen = None, set[str]()
    early = NodeCost()
    for node in graph.nodes:
        if node.kind is NodeKind.INPUT:
            continue
        cost = costs.of(node.name)
        if node.kind is NodeKind.UNIT:
            if part is not None:
                yield part
            part = _Part(node.name, early)
            early = NodeCost()
        if part is None:
            early += cost
            continue
        part.cost += cost
        part.num_parameters += _elements(graph, node, seen)
        part.output_bytes = sum(v.num_bytes for v in node.writes) or part.output_bytes
    if part is not None:
        yield part


def _elements(graph: Graph, node: Node, seen: set[str]) -> int:
    """Return the trained elements of a node's parameters; one that was seen counts no more."""
    fresh = [graph.parameter[name] for name in node.parameters if name not in seen]
    seen.update(node.parameters)
    return sum(each.num_elements for each in fresh if each.is_trained)


def _is_worth(part: _Part) -> bool:
    return part.cost.saved_bytes >= _WORTH * part.output_bytes > 0


def _layer(part: _Part, samples: int, reached: float) -> Layer:
    saved, out = part.cost.saved_bytes / samples, part.output_bytes / samples
    is_worth = _is_worth(part)
    return Layer(
        name=part.name,
        num_parameters=part.num_parameters,
        forward_seconds=part.cost.forward_seconds / samples / reached,
        backward_seconds=part.cost.backward_seconds / samples / reached,
        saved_bytes=saved,
        selective_bytes=(saved + out) / 2 if is_worth else saved,
        selective_fraction=0.5 if is_worth else 0.0,
        boundary_bytes=out,
        workspace_bytes=part.cost.workspace_bytes / samples,
    )
