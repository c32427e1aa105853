# SPDX-License-Identifier: Apache-2.0
"""Layers of a captured model, from its graph and the costs of one microbatch."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from smdist.modelparallel.core.cost import Costs, NodeCost
from smdist.modelparallel.core.graph import Graph, Node, NodeKind, Parameter
from smdist.modelparallel.core.layout.layer_model import Layer, LayerModel
from smdist.modelparallel.core.layout.machine_speed import Machine

_ESTIMATED = "estimated"
_WORTH = 2.0  # a layer that keeps at least this many times its output is worth a checkpoint
_STEPS = {"full": 1, "selective": 2, "every_8th": 8}
_TYPICAL = 4096.0  # size of products for which the device's efficiency is taken


@dataclass(slots=True)
class _Part:
    """Unit of the model with the operations that follow it."""

    name: str
    module: str
    cost: NodeCost = field(default_factory=NodeCost)
    num_parameters: int = 0
    parameter_bytes: int = 0
    output_bytes: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class MicrobatchCosts:
    """Graph and costs of a model for microbatches of one size.

    Attributes:
        graph: Graph of one microbatch.
        costs: Costs of the graph's nodes.
        samples: Samples of the microbatch.
    """

    graph: Graph
    costs: Costs
    samples: int


def layers_of(graph: Graph, costs: Costs, machine: Machine, *, samples: int) -> LayerModel:
    """Return the layers of a captured model, with seconds proportional to the samples.

    Saved bytes are proportional, too. Temporary memory up to the size of the trained parameters is
    taken for their new gradients, which no number of samples changes; the rest is proportional.

    Args:
        graph: Graph of one microbatch.
        costs: Costs of the graph's nodes.
        machine: Machine, for the efficiency of estimated costs.
        samples: Samples of the microbatch.
    """
    one = MicrobatchCosts(graph=graph, costs=costs, samples=samples)
    return layers_between(one, one, machine)


@dataclass(frozen=True, slots=True, kw_only=True)
class BorderMessages:
    """All-reduces of one module whose layers are split over ranks.

    Attributes:
        forward: Bytes for each sample of every all-reduce in the forward pass.
        backward: The same for the backward pass.
    """

    forward: tuple[float, ...] = ()
    backward: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class SplitCosts:
    """Model as one rank runs it when its layers are split over several ranks.

    Attributes:
        degree: Number of ranks that split each layer.
        small: Costs of this rank for the smallest microbatch.
        large: Costs of this rank for the largest microbatch.
        messages: All-reduces by the name of the module.
    """

    degree: int
    small: MicrobatchCosts
    large: MicrobatchCosts
    messages: Mapping[str, BorderMessages]


def with_splits(model: LayerModel, splits: Sequence[SplitCosts], machine: Machine) -> LayerModel:
    """Return the layers of a captured model, with those of one rank for each way to split them.

    Products of a split layer are smaller, so that they reach less of the device's peak.

    Args:
        model: Layers of the whole model.
        splits: Costs of the split model, for each number of ranks.
        machine: Machine, for the efficiency of estimated costs.
    """
    found = {}
    for each in splits:
        size = _TYPICAL / each.degree
        layers = layers_between(each.small, each.large, machine, product_size=size).layers
        of_nodes = messages_of_nodes(each.small.graph, each.messages)
        found[each.degree] = tuple(
            replace(
                layer,
                forward_messages=of_nodes[layer.name].forward,
                backward_messages=of_nodes[layer.name].backward,
            )
            for layer in layers
        )
    return replace(model, split_layers=found)


def messages_of_nodes(
    graph: Graph, messages: Mapping[str, BorderMessages]
) -> dict[str, BorderMessages]:
    """Return the all-reduces of each unit of a graph, by the unit's name.

    A unit has those of its module and of the modules in it. A module that is called twice has its
    all-reduces at its first call.

    Args:
        graph: Graph of the split model.
        messages: All-reduces by the name of the module.
    """
    left = dict(messages)
    found = {}
    for node in graph.nodes:
        if node.kind is not NodeKind.UNIT:
            continue
        own = [name for name in left if name == node.module or name.startswith(f"{node.module}.")]
        taken = [left.pop(name) for name in own]
        found[node.name] = BorderMessages(
            forward=tuple(size for each in taken for size in each.forward),
            backward=tuple(size for each in taken for size in each.backward),
        )
    return found


def layers_between(
    small: MicrobatchCosts, large: MicrobatchCosts, machine: Machine, *,
    product_size: float = _TYPICAL,
) -> LayerModel:  # fmt: skip
    """Return the layers of a captured model: its units in the order of execution.

    Seconds and bytes are linear in the number of samples, through both sizes; outputs are
    proportional to it. If the two sizes are equal, or their graphs have other units, the smaller
    one alone is taken, as by `layers_of`.
    Estimated seconds are those of the device's peak; they are divided by the efficiency that
    products of matrices reach. No layer is split: a graph does not say how; see `with_splits`.

    Args:
        small: Model with the smallest microbatch.
        large: Model with the largest microbatch.
        machine: Machine, for the efficiency of estimated costs.
        product_size: Size of matrix products for which the efficiency is taken.
    """
    is_estimated = small.costs.source == _ESTIMATED
    reached = machine.product_efficiency(product_size) if is_estimated else 1.0
    parts = list(_parts(small.graph, small.costs))
    others = list(_parts(large.graph, large.costs))
    if [part.name for part in parts] != [part.name for part in others]:
        large, others = small, parts
    layers = tuple(
        _layer(part, other, small.samples, large.samples, reached)
        for part, other in zip(parts, others, strict=True)
    )
    is_float32 = is_estimated and _is_float32(small.graph)
    return LayerModel(name=small.graph.model, layers=layers, is_float32=is_float32)


def _is_float32(graph: Graph) -> bool:
    """Return True if more than half of a model's parameter elements are float32."""
    whole = sum(each.num_elements for each in graph.parameters)
    return 2 * sum(e.num_elements for e in graph.parameters if e.dtype == "float32") > whole


def checkpointed(graph: Graph, costs: Costs, kind: str) -> tuple[str, ...]:
    """Return the modules that a kind of checkpointing checkpoints, in the order of execution.

    Args:
        graph: Graph of one microbatch.
        costs: Costs of the graph's nodes.
        kind: "full" for all layers that are worth it, "selective" for every second one,
            "every_8th" for every eighth one.
    """
    worth = [part.name for part in _parts(graph, costs) if _is_worth(part)]
    modules = [graph.node[name].module for name in worth]
    return tuple(dict.fromkeys(modules[:: _STEPS[kind]]))


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
            part = _Part(node.name, node.module, early)
            early = NodeCost()
        if part is None:
            early += cost
            continue
        part.cost += cost
        fresh = list(_trained(graph, node, seen))
        part.num_parameters += sum(each.num_elements for each in fresh)
        part.parameter_bytes += sum(each.num_bytes for each in fresh)
        part.output_bytes = sum(v.num_bytes for v in node.writes) or part.output_bytes
    if part is not None:
        yield part


def _trained(graph: Graph, node: Node, seen: set[str]) -> Iterator[Parameter]:
    """Yield a node's trained parameters; one that was seen counts no more."""
    fresh = [graph.parameter[name] for name in node.parameters if name not in seen]
    seen.update(node.parameters)
    yield from (each for each in fresh if each.is_trained)


def _is_worth(part: _Part) -> bool:
    return part.cost.saved_bytes >= _WORTH * part.output_bytes > 0


def _layer(part: _Part, other: _Part, samples: int, more: int, reached: float) -> Layer:
    """Return one layer.

    Args:
        part: Unit with the smallest microbatch.
        other: The same unit with the largest microbatch.
        samples: Samples of the smallest microbatch.
        more: Samples of the largest microbatch.
        reached: Fraction of the peak speed for which the costs are.
    """
    out = part.output_bytes / samples
    kept = _bytes_line(part.cost.saved_bytes, other.cost.saved_bytes, samples, more, fixed=0)
    work = _bytes_line(
        part.cost.workspace_bytes, other.cost.workspace_bytes, samples, more,
        fixed=part.parameter_bytes,
    )  # fmt: skip
    saved = kept[1]
    is_worth = _is_worth(part)
    ahead = _line(part.cost.forward_seconds, other.cost.forward_seconds, samples, more)
    behind = _line(part.cost.backward_seconds, other.cost.backward_seconds, samples, more)
    return Layer(
        name=part.name,
        num_parameters=part.num_parameters,
        forward_seconds=ahead[1] / reached,
        backward_seconds=behind[1] / reached,
        fixed_forward_seconds=ahead[0] / reached,
        fixed_backward_seconds=behind[0] / reached,
        saved_bytes=saved,
        selective_bytes=(saved + out) / 2 if is_worth else saved,
        selective_fraction=0.5 if is_worth else 0.0,
        boundary_bytes=out,
        fixed_saved_bytes=kept[0],
        workspace_bytes=work[1],
        fixed_workspace_bytes=work[0],
    )


def _line(small: float, large: float, samples: int, more: int) -> tuple[float, float]:
    """Return (fixed seconds, seconds of each sample) of the line through two sizes.

    Neither is below 0; if the line has a negative part, seconds are proportional to the samples.
    """
    if more == samples:
        return 0.0, small / samples
    slope = (large - small) / (more - samples)
    fixed = small - slope * samples
    if slope < 0 or fixed < 0:
        return 0.0, large / more
    return fixed, slope


def _bytes_line(
    small: float, large: float, samples: int, more: int, *, fixed: float
) -> tuple[float, float]:
    """Return (fixed bytes, bytes of each sample) of the line through two sizes.

    Neither is below 0. If fewer samples need more bytes, the larger need is fixed; if bytes grow
    faster than the samples, they are proportional to the larger size.

    Args:
        small: Bytes of the smallest microbatch.
        large: Bytes of the largest microbatch.
        samples: Samples of the smallest microbatch.
        more: Samples of the largest microbatch.
        fixed: Most bytes that are taken for fixed if the two sizes are equal.
    """
    if more == samples:
        constant = min(fixed, small)
        return constant, (small - constant) / samples
    if large < small:
        return small, 0.0
    return _line(small, large, samples, more)
