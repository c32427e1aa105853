# SPDX-License-Identifier: Apache-2.0
"""Pipeline of one candidate: stages of the model, costs of stages, and memory of ranks.

A candidate is a combination of parallel degrees, schedule and number of microbatches.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from smdist.modelparallel.core.cost import Costs, Link, NodeCost, StateBytes
from smdist.modelparallel.core.graph import Graph, Parameter
from smdist.modelparallel.core.partition import Partition
from smdist.modelparallel.core.placement import Edge, replicated
from smdist.modelparallel.core.planner.pipeline_layout import PipelineLayout
from smdist.modelparallel.core.schedule.actions import Schedule
from smdist.modelparallel.core.simulate import (
    ReplicaLinks,
    Timeline,
    all_reduce_seconds,
    end_bucket_bytes,
    exposed_seconds,
    simulate,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class CandidatePipeline:
    """Stages of one pipeline, and the parameters that they hold, for one microbatch size.

    Attributes:
        graph: Graph of the model.
        partition: Modules of each stage, and costs of the stages.
        parameters: Names of the parameters that each stage holds.
    """

    graph: Graph
    partition: Partition
    parameters: tuple[frozenset[str], ...]


def split(graph: Graph, partition: Partition) -> CandidatePipeline:
    """Return a partition of the model, with the names of the parameters that each stage holds."""
    parameters: list[set[str]] = [set() for _ in partition.stages]
    for node in graph.nodes:
        for stage in partition.placement.stages[node.name]:
            parameters[stage].update(node.parameters)
    return CandidatePipeline(
        graph=graph,
        partition=partition,
        parameters=tuple(map(frozenset, parameters)),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Pipeline:
    """Stages of one pipeline, placed on the ranks of a cluster.

    Attributes:
        split: Stages of the pipeline, with graph and parameters.
        rank_of: Rank of each stage.
        num_microbatches: Number of microbatches of a step.
        splits_backward: True if the schedule computes weight gradients separately.
        layout: Positions of all pipelines on the cluster.
        link: Function that returns the link between two ranks of a pipeline.
        state: Bytes of weight, gradient and optimizer state for each parameter element.
        split_overhead: Additional time of a backward pass whose input and weight gradients are
            computed separately, as a fraction of the whole pass.
        overlaps_sums: True if gradients are summed over replicas during the last backward pass.
    """

    split: CandidatePipeline
    rank_of: tuple[int, ...]
    num_microbatches: int
    splits_backward: bool
    layout: PipelineLayout
    link: Callable[[int, int], Link]
    state: StateBytes
    split_overhead: float
    overlaps_sums: bool

    @property
    def stages_of(self) -> tuple[tuple[int, ...], ...]:
        """Stages on each rank of the pipeline, by rank."""
        return tuple(
            tuple(stage for stage, of in enumerate(self.rank_of) if of == rank)
            for rank in range(max(self.rank_of) + 1)
        )

    def costs(self) -> tuple[NodeCost, ...]:
        """Return the cost of each stage, by stage.

        If the schedule computes input and weight gradients separately, the backward pass is longer
        by `split_overhead`.
        """
        if not self.splits_backward:
            return self.split.partition.costs
        factor = 1 + self.split_overhead
        return tuple(
            replace(
                cost,
                input_gradient_seconds=cost.input_gradient_seconds * factor,
                weight_gradient_seconds=cost.weight_gradient_seconds * factor,
            )
            for cost in self.split.partition.costs
        )

    def state_bytes(self) -> tuple[int, ...]:
        """Return the bytes of weights, gradients and optimizer state of each rank, by rank."""
        parameter, held = self.split.graph.parameter, self._held()
        return tuple(sum(self.state.of(parameter[name]) for name in names) for names in held)

    def reduce_seconds(self) -> tuple[float, ...]:
        """Return the seconds of sums of gradients after a stage's last backward pass, by stage.

        Gradients are summed over replicas. Gradients of a tied parameter are also summed over the
        stages that hold the parameter.
        """
        takes = [0.0] * len(self.split.parameters)
        for rank, stages in enumerate(self.stages_of):
            replicas = self.layout.replicas(rank)
            seen: set[str] = set()
            for stage in stages if self.layout.num_pipelines > 1 else ():
                fresh = self.split.parameters[stage] - seen
                seen |= fresh
                takes[stage] = self._sum_seconds(stage, fresh, replicas)
        for stage, seconds in self._tied_seconds():
            takes[stage] += seconds
        return tuple(takes)

    def _sum_seconds(self, stage: int, names: frozenset[str], replicas: ReplicaLinks) -> float:
        """Return the seconds of a sum over replicas that follow a stage's last backward pass.

        Args:
            stage: Number of the stage.
            names: Names of the parameters whose gradients are summed.
            replicas: Replicas of the stage, and the links between them.
        """

        def seconds(num_bytes: int) -> float:
            size = max(1, round(self.state.gradient))
            return all_reduce_seconds(num_bytes, replicas, element_bytes=size)

        num_bytes = self._gradient_bytes(names)
        if not (self.overlaps_sums and num_bytes) or self.splits_backward:
            return seconds(num_bytes)
        parameters = self.split.graph.parameters
        first, last = (  # a backward pass begins with the last parameters
            end_bucket_bytes(num_bytes, self._first_bytes(ordered, names))
            for ordered in (reversed(parameters), parameters)
        )
        backward = self.costs()[stage].backward_seconds
        return exposed_seconds(seconds(num_bytes), seconds(last), first / num_bytes, backward)

    def _first_bytes(self, ordered: Iterable[Parameter], names: frozenset[str]) -> int:
        """Return the bytes of the gradient of the first trained parameter that is among `names`."""
        found = next(each.name for each in ordered if each.is_trained and each.name in names)
        return self._gradient_bytes(frozenset([found]))

    def simulate(self, schedule: Schedule) -> Timeline:
        """Return the timeline of one step, simulated with the given schedule."""
        return simulate(
            schedule,
            self.costs(),
            edges=self.split.partition.placement.edges,
            link=self.link,
            static_bytes=self.state_bytes(),
            stage_reduce_seconds=self.reduce_seconds(),
        )

    def least_seconds(self) -> float:
        """Return a lower bound on the seconds of a step, without a simulation.

        A rank first waits for the forward passes of earlier stages. Then the rank computes all
        microbatches. Then the earlier stages run their last backward passes.
        """
        costs, reduced = self.costs(), self.reduce_seconds()
        edges = self.split.partition.placement.edges
        fills = _longest_paths([cost.forward_seconds for cost in costs], edges)
        back = [edge for edge in edges if edge.has_gradient]
        if self.splits_backward:
            drains = _longest_paths([cost.input_gradient_seconds for cost in costs], back)
        else:
            drains = _longest_paths([cost.backward_seconds for cost in costs], back)
        return max(
            self._least(
                [costs[stage] for stage in stages],
                fill=min(fills[stage] for stage in stages),
                drain=min(drains[stage] for stage in stages),
                reduced=min(reduced[stage] for stage in stages),
            )
            for stages in self.stages_of
            if stages
        )

    def _least(self, mine: list[NodeCost], *, fill: float, drain: float, reduced: float) -> float:
        """Return the lower bound on the seconds of a step for one rank.

        Args:
            mine: Costs of the rank's stages for one microbatch.
            fill: Seconds in which the rank waits before its first forward pass.
            drain: Seconds that other stages still compute after the rank's last backward pass.
            reduced: Seconds to sum the rank's gradients over replicas.
        """
        count = self.num_microbatches
        whole = count * sum(cost.seconds for cost in mine) + reduced
        if self.splits_backward:
            tight = sum(cost.forward_seconds + cost.input_gradient_seconds for cost in mine)
            return fill + max(whole, count * tight + drain)
        return fill + max(whole, count * sum(cost.seconds for cost in mine) + drain)

    def _held(self) -> Iterator[frozenset[str]]:
        """Yield the names of the parameters that each rank holds, by rank."""
        for stages in self.stages_of:
            yield frozenset().union(*(self.split.parameters[stage] for stage in stages))

    def _gradient_bytes(self, names: frozenset[str]) -> int:
        """Return the bytes of the gradients of the parameters with these names."""
        parameters = (self.split.graph.parameter[name] for name in names)
        return round(
            sum(each.num_elements for each in parameters if each.is_trained) * self.state.gradient
        )

    def _tied_seconds(self) -> Iterator[tuple[int, float]]:
        """Yield (stage, seconds in which the stage sends the gradient of a tied parameter).

        A tied parameter is held by several stages. The gradient is sent to the ranks of all other
        stages that hold the parameter.
        """
        for tie in self.split.partition.placement.ties:
            size = self._gradient_bytes(frozenset([tie.parameter]))
            for stage in tie.stages:
                mine = self.rank_of[stage]
                others = {self.rank_of[each] for each in tie.stages} - {mine}
                yield stage, sum(self.link(mine, other).seconds(size) for other in sorted(others))


def _longest_paths(seconds: Sequence[float], edges: Sequence[Edge]) -> list[float]:
    """Return, for each stage, the longest time that values need to reach it.

    The time is the sum of the seconds of all stages through which the values pass before.

    Args:
        seconds: Seconds of each stage.
        edges: Values sent between stages.
    """
    paths = [0.0] * len(seconds)
    for edge in edges:  # edges are ordered by source, so the path to each source is complete
        paths[edge.target] = max(paths[edge.target], paths[edge.source] + seconds[edge.source])
    return paths


def longest_chain(graph: Graph, costs: Costs) -> float:
    """Return the seconds of the slowest chain of nodes, forward and backward pass together.

    In a chain, each node needs the result of the previous node. So these nodes run one after
    another in any partition.
    """
    free, paths, longest = replicated(graph), dict[str, float](), 0.0
    for node in graph.nodes:
        if node.name not in free:
            line = max((paths[value] for value in node.reads if value in paths), default=0.0)
            line += costs.of(node.name).seconds
            paths.update((value.name, line) for value in node.writes if value.has_gradient)
            longest = max(longest, line)
    return longest
