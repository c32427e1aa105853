# SPDX-License-Identifier: Apache-2.0
"""Costs of each stage of a placement, with units in any order."""

from __future__ import annotations

from dataclasses import dataclass, replace

from smdist.modelparallel.core.cost import Costs, NodeCost
from smdist.modelparallel.core.graph import Graph
from smdist.modelparallel.core.partition.chain import ways_of
from smdist.modelparallel.core.partition.objective import Aim
from smdist.modelparallel.core.partition.shared_activations import common_values
from smdist.modelparallel.core.placement import Placement


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """Cost of one stage for one microbatch.

    Attributes:
        cost: Sum of the costs of its nodes.
        state_bytes: Bytes of parameters, gradients and optimizer state; each parameter once.
        num_messages: Messages out and in, both directions; a value counts once where it leaves.
        wire_bytes: Bytes of these messages.
    """

    cost: NodeCost
    state_bytes: int
    num_messages: int
    wire_bytes: int

    def memory_bytes(self, in_flight: int) -> int:
        """Return the bytes of state, saved values of `in_flight` microbatches, and workspace."""
        return self.state_bytes + in_flight * self.cost.saved_bytes + self.cost.workspace_bytes


def shares_of(graph: Graph, costs: Costs, placement: Placement, aim: Aim) -> tuple[Share, ...]:
    """Return the cost of each stage."""
    sums = [NodeCost() for _ in range(placement.num_stages)]
    held: list[set[str]] = [set() for _ in sums]
    for node in graph.nodes:
        for stage in placement.stages[node.name]:
            sums[stage] = sums[stage] + costs.of(node.name)
            held[stage].update(node.parameters)
    messages, wire = _wires(placement)
    again = _kept_again(graph, costs, placement)
    return tuple(
        Share(
            cost=replace(cost, saved_bytes=cost.saved_bytes + again[stage]),
            state_bytes=sum(aim.state.of(graph.parameter[name]) for name in held[stage]),
            num_messages=messages[stage],
            wire_bytes=wire[stage],
        )
        for stage, cost in enumerate(sums)
    )


def _kept_again(graph: Graph, costs: Costs, placement: Placement) -> list[int]:
    """Return the bytes that each stage keeps and that count at nodes of other stages."""
    found = [0] * placement.num_stages
    for value in common_values(graph, costs).values():
        keeping = {stage for name in value.others for stage in placement.stages[name]}
        for stage in keeping.difference(placement.stages[value.first]):
            found[stage] += value.num_bytes
    return found


def _wires(placement: Placement) -> tuple[list[int], list[int]]:
    messages, wire = [0] * placement.num_stages, [0] * placement.num_stages
    sent: set[str] = set()
    for edge in placement.edges:
        ends = [edge.target] if edge.value in sent else [edge.source, edge.target]
        sent.add(edge.value)
        for stage in ends:
            messages[stage] += ways_of(edge)
            wire[stage] += ways_of(edge) * edge.num_bytes
    return messages, wire
