# SPDX-License-Identifier: Apache-2.0
"""A model cut into the stages of one candidate: what each stage costs and each rank holds."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from smdist.modelparallel.core.cost import Link, NodeCost, StateBytes
from smdist.modelparallel.core.graph import Graph
from smdist.modelparallel.core.partition import Partition
from smdist.modelparallel.core.planner.layout import Layout
from smdist.modelparallel.core.schedule.actions import Schedule
from smdist.modelparallel.core.simulate import Timeline, all_reduce_seconds, simulate


@dataclass(frozen=True, slots=True, kw_only=True)
class Split:
    """Stages of one pipeline, for one size of microbatch.

    Attributes:
        parameters: Names of the parameters that each stage holds.
    """

    graph: Graph
    partition: Partition
    parameters: tuple[frozenset[str], ...]


def split(graph: Graph, partition: Partition) -> Split:
    """Add what each stage holds to a partition."""
    parameters: list[set[str]] = [set() for _ in partition.stages]
    for node in graph.nodes:
        for stage in partition.placement.stages[node.name]:
            parameters[stage].update(node.parameters)
    return Split(
        graph=graph,
        partition=partition,
        parameters=tuple(map(frozenset, parameters)),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Pipeline:
    """A split on the ranks of a cluster.

    Attributes:
        rank_of: The rank of each stage.
        splits_backward: Whether weight gradients are computed apart.
        link: Joins two ranks of a pipeline (`Layout.links`).
        split_overhead: What a backward pass in two parts costs more than a whole one.
    """

    split: Split
    rank_of: tuple[int, ...]
    num_microbatches: int
    splits_backward: bool
    layout: Layout
    link: Callable[[int, int], Link]
    state: StateBytes
    split_overhead: float

    @property
    def stages_of(self) -> tuple[tuple[int, ...], ...]:
        """The stages on each rank."""
        return tuple(
            tuple(stage for stage, of in enumerate(self.rank_of) if of == rank)
            for rank in range(max(self.rank_of) + 1)
        )

    def costs(self) -> tuple[NodeCost, ...]:
        """Of each stage, as this schedule runs it."""
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
        """What each rank of the pipeline holds all the time."""
        parameter, held = self.split.graph.parameter, self._held()
        return tuple(sum(self.state.of(parameter[name]) for name in names) for names in held)

    def reduce_seconds(self) -> tuple[float, ...]:
        """Of each stage: its gradients over replicas, and tied ones over the pipeline."""
        takes = [0.0] * len(self.split.parameters)
        for rank, stages in enumerate(self.stages_of):
            replicas = self.layout.replicas(rank)
            seen: set[str] = set()
            for stage in stages if self.layout.num_pipelines > 1 else ():
                fresh = self.split.parameters[stage] - seen
                seen |= fresh
                size = max(1, round(self.state.gradient))
                takes[stage] += all_reduce_seconds(
                    self._gradient_bytes(fresh), replicas, element_bytes=size
                )
        for stage, seconds in self._tie_seconds():
            takes[stage] += seconds
        return tuple(takes)

    def simulate(self, schedule: Schedule) -> Timeline:
        """Predict one step."""
        return simulate(
            schedule,
            self.costs(),
            edges=self.split.partition.placement.edges,
            link=self.link,
            static_bytes=self.state_bytes(),
            stage_reduce_seconds=self.reduce_seconds(),
        )

    def least_seconds(self) -> float:
        """What a step takes at least, by arithmetic alone.

        The rank of stage s waits for one forward pass of all stages before it; then it works off
        all microbatches; after its last backward pass those stages have theirs to do.
        """
        costs, reduced = self.costs(), self.reduce_seconds()
        return max(self._least(stages, costs, reduced) for stages in self.stages_of if stages)

    def _least(
        self, stages: tuple[int, ...], costs: tuple[NodeCost, ...], reduced: tuple[float, ...]
    ) -> float:
        count, before = self.num_microbatches, costs[: min(stages)]
        fill = sum(cost.forward_seconds for cost in before)
        mine = [costs[stage] for stage in stages]
        whole = count * sum(cost.seconds for cost in mine) + min(reduced[each] for each in stages)
        if self.splits_backward:
            tight = sum(cost.forward_seconds + cost.input_gradient_seconds for cost in mine)
            drain = sum(cost.input_gradient_seconds for cost in before)
            return fill + max(whole, count * tight + drain)
        drain = sum(cost.backward_seconds for cost in before)
        return fill + max(whole, count * sum(cost.seconds for cost in mine) + drain)

    def _held(self) -> Iterator[frozenset[str]]:
        for stages in self.stages_of:
            yield frozenset().union(*(self.split.parameters[stage] for stage in stages))

    def _gradient_bytes(self, names: frozenset[str]) -> int:
        parameters = (self.split.graph.parameter[name] for name in names)
        return round(
            sum(each.num_elements for each in parameters if each.is_trained) * self.state.gradient
        )

    def _tie_seconds(self) -> Iterator[tuple[int, float]]:
        """What each stage spends on keeping tied parameters equal: all send, all receive."""
        for tie in self.split.partition.placement.ties:
            size = self._gradient_bytes(frozenset([tie.parameter]))
            for stage in tie.stages:
                mine = self.rank_of[stage]
                others = {self.rank_of[each] for each in tie.stages} - {mine}
                yield stage, sum(self.link(mine, other).seconds(size) for other in sorted(others))
