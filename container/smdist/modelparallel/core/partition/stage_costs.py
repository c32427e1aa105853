# SPDX-License-Identifier: Apache-2.0
"""Costs of each pipeline stage: time, memory and messages for one microbatch."""

from __future__ import annotations

from dataclasses import dataclass, replace

from smdist.modelparallel.core.cost import Costs, NodeCost
from smdist.modelparallel.core.graph import Graph
from smdist.modelparallel.core.partition.chain import ways_of
from smdist.modelparallel.core.partition.partition_options import PartitionOptions
from smdist.modelparallel.core.partition.shared_activations import shared_values
from smdist.modelparallel.core.placement import Placement


@dataclass(frozen=True, slots=True, kw_only=True)
class StageCost:
    """Cost of one stage for one microbatch.

    Attributes:
        cost: Sum of the costs of the stage's nodes.
        state_bytes: Bytes of parameters, gradients and optimizer state; each parameter once.
        num_messages: Number of sent and received messages, gradients included. A value that
            several stages receive counts once at its sender.
        wire_bytes: Bytes of all these messages.
    """

    cost: NodeCost
    state_bytes: int
    num_messages: int
    wire_bytes: int

    def memory_bytes(self, in_flight: int) -> int:
        """Return the bytes that this stage needs: state, activations and workspace.

        Args:
            in_flight: Number of microbatches whose activations are kept at the same time.
        """
        return self.state_bytes + in_flight * self.cost.saved_bytes + self.cost.workspace_bytes


def costs_of_stages(
    graph: Graph, costs: Costs, placement: Placement, options: PartitionOptions
) -> tuple[StageCost, ...]:
    """Return the cost of each stage of a placement, by stage."""
    sums = [NodeCost() for _ in range(placement.num_stages)]
    held: list[set[str]] = [set() for _ in sums]
    for node in graph.nodes:
        for stage in placement.stages[node.name]:
            sums[stage] = sums[stage] + costs.of(node.name)
            held[stage].update(node.parameters)
    messages, wire = _traffic(placement)
    shared = _shared_bytes(graph, costs, placement)
    return tuple(
        StageCost(
            cost=replace(cost, saved_bytes=cost.saved_bytes + shared[stage]),
            state_bytes=sum(options.state.of(graph.parameter[name]) for name in held[stage]),
            num_messages=messages[stage],
            wire_bytes=wire[stage],
        )
        for stage, cost in enumerate(sums)
    )


def _shared_bytes(graph: Graph, costs: Costs, placement: Placement) -> list[int]:
    """Return, by stage, the bytes of kept activations that the stage's own nodes do not count.

    An activation that several nodes keep is included in the cost of one node only. Here its bytes
    are counted for each other stage that keeps it.
    """
    found = [0] * placement.num_stages
    for value in shared_values(graph, costs).values():
        keepers = {stage for name in value.others for stage in placement.stages[name]}
        for stage in keepers.difference(placement.stages[value.first]):
            found[stage] += value.num_bytes
    return found


def _traffic(placement: Placement) -> tuple[list[int], list[int]]:
    """Return the numbers of messages and of bytes that each stage sends and receives, by stage."""
    messages, wire = [0] * placement.num_stages, [0] * placement.num_stages
    sent: set[str] = set()
    for edge in placement.edges:
        ends = [edge.target] if edge.value in sent else [edge.source, edge.target]
        sent.add(edge.value)
        for stage in ends:
            messages[stage] += ways_of(edge)
            wire[stage] += ways_of(edge) * edge.num_bytes
    return messages, wire
