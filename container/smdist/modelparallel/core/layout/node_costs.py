# SPDX-License-Identifier: Apache-2.0
"""Costs of a captured model's nodes in a layout: messages of split layers, and copies to the host.

The planner of stages knows neither. Messages add to the seconds of both passes, since nothing
overlaps with them. With offload, activations are not kept on the device, except those of the few
layers that are copied; a copy that takes longer than the computation adds the difference.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from smdist.modelparallel.core.cost import Costs, NodeCost
from smdist.modelparallel.core.graph import Graph
from smdist.modelparallel.core.layout.degrees import Layout
from smdist.modelparallel.core.layout.from_graph import BorderMessages, messages_of_nodes
from smdist.modelparallel.core.layout.layer_costs import COPIES_IN_TRANSIT, message_seconds
from smdist.modelparallel.core.layout.machine_speed import Machine


def costs_in_layout(
    graph: Graph, costs: Costs, layout: Layout, machine: Machine,
    messages: Mapping[str, BorderMessages], samples: int,
) -> Costs:  # fmt: skip
    """Return the costs of one rank of a layout.

    Args:
        graph: Graph of one microbatch of the model, whose layers are split already.
        costs: Costs of the graph's nodes, without messages.
        layout: The layout.
        machine: Machine of the layout.
        messages: All-reduces of split modules, by name.
        samples: Samples of the microbatch.
    """
    found = dict(costs.nodes)
    for name, each in messages_of_nodes(graph, messages).items():
        ahead, behind = (
            message_seconds(machine, sizes, layout.tensor, samples)
            for sizes in (each.forward, each.backward)
        )
        found[name] = _later(costs.of(name), ahead, behind)
    if layout.offload:
        speed = machine.host_bytes_per_second
        found = {name: _offloaded(cost, speed) for name, cost in found.items()}
    return replace(costs, nodes=found)


def _later(cost: NodeCost, ahead: float, behind: float) -> NodeCost:
    """Return a cost with more seconds in the forward and in the backward pass."""
    return replace(
        cost,
        forward_seconds=cost.forward_seconds + ahead,
        input_gradient_seconds=cost.input_gradient_seconds + behind,
    )


def _offloaded(cost: NodeCost, bytes_per_second: float) -> NodeCost:
    """Return the cost of a node whose activations are in the host's memory between the passes."""
    more = max(0.0, 2 * cost.saved_bytes / bytes_per_second - cost.seconds) / 2
    return replace(
        _later(cost, more, more),
        saved_bytes=0,
        workspace_bytes=cost.workspace_bytes + COPIES_IN_TRANSIT * cost.saved_bytes,
        keeps=(),
    )
