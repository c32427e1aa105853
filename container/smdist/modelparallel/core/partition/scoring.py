# SPDX-License-Identifier: Apache-2.0
"""Scores that tell which of two assignments of modules to pipeline stages is better."""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import pairwise

from smdist.modelparallel.core.cost import Costs, NodeCost
from smdist.modelparallel.core.graph import Graph
from smdist.modelparallel.core.partition.chain import Chain, SpanCost, ways_of
from smdist.modelparallel.core.partition.partition_options import PartitionOptions
from smdist.modelparallel.core.partition.stage_costs import StageCost, costs_of_stages
from smdist.modelparallel.core.placement import Placement, Tie, place

Objective = Callable[[Sequence[NodeCost], Placement], float]
"""Function that returns the seconds of a step from the cost of each stage and the placement."""


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class Score:
    """Score of an assignment of units to stages; a lower score is better.

    Scores are compared like tuples: by the first field, and if it is equal, by the next one.

    Attributes:
        excess_bytes: Bytes by which the fullest rank exceeds its device's memory.
        objective: Result of the caller's objective; by default the largest load of a rank.
        load: Largest load of a stage.
        sent_bytes: Bytes that all stages send, values and gradients.
        peak_bytes: Bytes that the fullest rank holds at its peak.
    """

    excess_bytes: int
    objective: float
    load: float
    sent_bytes: int
    peak_bytes: int


@dataclass(frozen=True, kw_only=True)  # no slots: the class has cached properties
class Scorer:
    """Scorer that compares assignments of a model's modules to stages.

    Attributes:
        graph: Graph of the model.
        costs: Costs of the graph's nodes.
        chain: Modules that are not split further, in the order of execution.
        options: Options of the partition.
        objective: The caller's function that returns the seconds of a training step, or None.
        span_cache: Costs of stages that were computed before. The key is (position of the stage's
            first module in the chain, position after the last module).
    """

    graph: Graph
    costs: Costs
    chain: Chain
    options: PartitionOptions
    objective: Objective | None
    span_cache: dict[tuple[int, int], SpanCost] = field(default_factory=dict)

    @cached_property
    def tied_positions(self) -> dict[str, list[int]]:
        """Positions of the units (undivided modules) that use each tied parameter, by its name.

        A tied parameter is used by several units. A position is an index in `chain.units`.
        """
        found: dict[str, list[int]] = {}
        for at, unit in enumerate(self.chain.units):
            for name in unit.parameters:
                found.setdefault(name, []).append(at)
        return {name: of for name, of in found.items() if len(of) > 1}

    def place(self, stage_of: Mapping[str, int]) -> Placement:
        """Return the placement of all nodes of the graph.

        Args:
            stage_of: Stage of each unit (undivided module), by the unit's name.
        """
        return place(self.graph, stage_of, num_stages=self.options.num_stages)

    def stage_costs(self, placement: Placement) -> tuple[StageCost, ...]:
        """Return the cost of each stage of a placement, by stage."""
        return costs_of_stages(self.graph, self.costs, placement, self.options)

    def peaks(self, stage_costs: Sequence[StageCost], placement: Placement) -> tuple[int, ...]:
        """Return the largest number of bytes that each rank holds, by rank."""
        return self._peaks(stage_costs, self._sizes(stage_costs), placement.ties)

    def seconds(self, stage_costs: Sequence[StageCost]) -> tuple[float, ...]:
        """Return the seconds of one microbatch on each stage, messages included, by stage."""
        wire = self.options.wire_seconds
        return tuple(s.cost.seconds + wire(s.num_messages, s.wire_bytes) for s in stage_costs)

    def score(self, placement: Placement) -> Score:
        """Return the score of a placement; a lower score is better."""
        stage_costs = self.stage_costs(placement)
        wires = [ways_of(edge) * edge.num_bytes for edge in placement.edges]
        score = self._score(self.seconds(stage_costs), stage_costs, sum(wires), placement.ties)
        if self.objective is None:
            return score
        return replace(score, objective=self.objective([s.cost for s in stage_costs], placement))

    def score_cuts(self, ends: Sequence[int]) -> Score:
        """Return the score of a division into stages; a lower score is better.

        Args:
            ends: For each stage, the position after its last module in the chain.
        """
        if self.objective is not None:
            return self.score(self.place(self.assign(ends)))
        spans = [self._span(at) for at in pairwise([0, *ends])]
        wire = self.options.wire_seconds
        seconds = [s.seconds + wire(s.num_messages, s.wire_bytes) for s in spans]
        received = sum(span.received_bytes for span in spans)
        return self._score(seconds, spans, received, self._ties(ends))

    def _span(self, ends: tuple[int, int]) -> SpanCost:
        if ends not in self.span_cache:
            self.span_cache[ends] = self.chain.span(*ends)
        return self.span_cache[ends]

    def _ties(self, ends: Sequence[int]) -> list[Tie]:
        """Return the parameters that several stages hold.

        If each rank has only one stage, the result is empty, because it is not needed.

        Args:
            ends: For each stage, the position after its last module in the chain.
        """
        if not self.options.has_virtual_stages:
            return []
        stages = (
            (name, {bisect_right(ends, at) for at in of})
            for name, of in self.tied_positions.items()
        )
        return [Tie(parameter=name, stages=tuple(of)) for name, of in stages if len(of) > 1]

    def _sizes(self, stages: Sequence[StageCost | SpanCost]) -> list[int]:
        flights = zip(stages, self.options.in_flight, strict=True)
        return [stage.memory_bytes(number) for stage, number in flights]

    def _peaks(
        self, stages: Sequence[StageCost | SpanCost], sizes: list[int], ties: Iterable[Tie]
    ) -> tuple[int, ...]:
        """Return the largest number of bytes that each rank holds, by rank.

        The stages of a rank share one workspace, and hold a tied parameter once.

        Args:
            stages: Cost of each stage.
            sizes: Bytes that each stage would hold if it were alone on its rank.
            ties: Parameters that several stages hold.
        """
        options = self.options
        peaks = list(options.by_rank(sizes))
        if not options.has_virtual_stages:
            return tuple(peaks)
        largest = [0] * options.num_ranks
        for stage, rank in zip(stages, options.rank_of, strict=True):
            workspace = (stage.cost if isinstance(stage, StageCost) else stage).workspace_bytes
            largest[rank] = max(largest[rank], workspace)
            peaks[rank] -= workspace
        for tie in ties:
            size = options.state.of(self.graph.parameter[tie.parameter])
            for rank, number in Counter(options.rank_of[stage] for stage in tie.stages).items():
                peaks[rank] -= (number - 1) * size
        return tuple(map(int.__add__, peaks, largest))

    def _score(
        self,
        seconds: Sequence[float],
        stages: Sequence[StageCost | SpanCost],
        sent_bytes: int,
        ties: Iterable[Tie],
    ) -> Score:
        options, sizes = self.options, self._sizes(stages)
        loads = [options.load(time, size) for time, size in zip(seconds, sizes, strict=True)]
        times, peaks = [0.0] * options.num_ranks, self._peaks(stages, sizes, ties)
        for rank, time in zip(options.rank_of, seconds, strict=True):
            times[rank] += time
        peak = max(peaks)
        return Score(
            excess_bytes=max(0, peak - options.device_bytes) if options.device_bytes else 0,
            objective=max(map(options.load, times, peaks)),
            load=max(loads),
            sent_bytes=sent_bytes,
            peak_bytes=peak,
        )

    def assign(self, ends: Sequence[int]) -> dict[str, int]:
        """Return the stage of each module in the chain, by the module's name.

        Args:
            ends: For each stage, the position after its last module in the chain.
        """
        starts = [0, *ends[:-1]]
        return {
            name: stage
            for stage, (start, end) in enumerate(zip(starts, ends, strict=True))
            for name in self.chain.names[start:end]
        }
