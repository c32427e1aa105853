# SPDX-License-Identifier: Apache-2.0
"""Scores of assignments of units to stages: one order for every search that compares two."""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import pairwise

from smdist.modelparallel.core.cost import Costs, NodeCost
from smdist.modelparallel.core.graph import Graph
from smdist.modelparallel.core.partition.chain import Chain, StageCost, ways_of
from smdist.modelparallel.core.partition.objective import Aim
from smdist.modelparallel.core.partition.stage_costs import Share, shares_of
from smdist.modelparallel.core.placement import Placement, Tie, place

Objective = Callable[[Sequence[NodeCost], Placement], float]
"""Function that returns the seconds of a step from the costs of each stage and the placement."""


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class Score:
    """Score of an assignment: lower is better, compared field by field.

    Attributes:
        excess_bytes: Bytes of the fullest rank beyond its device.
        price: Result of the objective; without an objective, the largest load of a rank.
        load: Largest load of a stage.
        sent_bytes: Bytes over all edges, both directions.
        peak_bytes: Bytes that the fullest rank holds.
    """

    excess_bytes: int
    price: float
    load: float
    sent_bytes: int
    peak_bytes: int


@dataclass(frozen=True, kw_only=True)  # no slots: the class has cached properties
class Judge:
    """Scorer for assignments of one graph.

    Attributes:
        known: Costs of runs of the chain that were scored before.
    """

    graph: Graph
    costs: Costs
    chain: Chain
    aim: Aim
    objective: Objective | None
    known: dict[tuple[int, int], StageCost] = field(default_factory=dict)

    @cached_property
    def tied(self) -> dict[str, list[int]]:
        """Positions in the chain of each parameter that several units use, by its name."""
        found: dict[str, list[int]] = {}
        for at, piece in enumerate(self.chain.pieces):
            for name in piece.parameters:
                found.setdefault(name, []).append(at)
        return {name: of for name, of in found.items() if len(of) > 1}

    def place(self, stage_of: Mapping[str, int]) -> Placement:
        """Return the placement of the whole graph on the given stages."""
        return place(self.graph, stage_of, num_stages=self.aim.num_stages)

    def shares(self, placement: Placement) -> tuple[Share, ...]:
        """Return the cost of each stage."""
        return shares_of(self.graph, self.costs, placement, self.aim)

    def peaks(self, shares: Sequence[Share], placement: Placement) -> tuple[int, ...]:
        """Return the largest number of bytes that each rank holds."""
        return self._peaks(shares, self._sizes(shares), placement.ties)

    def seconds(self, shares: Sequence[Share]) -> tuple[float, ...]:
        """Return the time of each stage with its exposed communication."""
        wire = self.aim.wire_seconds
        return tuple(s.cost.seconds + wire(s.num_messages, s.wire_bytes) for s in shares)

    def score(self, placement: Placement) -> Score:
        """Return the score of a placement."""
        shares = self.shares(placement)
        wires = [ways_of(edge) * edge.num_bytes for edge in placement.edges]
        score = self._score(self.seconds(shares), shares, sum(wires), placement.ties)
        if self.objective is None:
            return score
        return replace(score, price=self.objective([s.cost for s in shares], placement))

    def score_cuts(self, ends: Sequence[int]) -> Score:
        """Return the score of cuts of the chain; only an objective needs their placement."""
        if self.objective is not None:
            return self.score(self.place(self.assign(ends)))
        spans = [self._span(at) for at in pairwise([0, *ends])]
        wire = self.aim.wire_seconds
        seconds = [s.seconds + wire(s.num_messages, s.wire_bytes) for s in spans]
        received = sum(span.received_bytes for span in spans)
        return self._score(seconds, spans, received, self._ties(ends))

    def _span(self, ends: tuple[int, int]) -> StageCost:
        if ends not in self.known:
            self.known[ends] = self.chain.span(*ends)
        return self.known[ends]

    def _ties(self, ends: Sequence[int]) -> list[Tie]:
        """Return the tied parameters of stages with these ends, if ranks have several stages."""
        if not self.aim.shares_ranks:
            return []
        stages = ((name, {bisect_right(ends, at) for at in of}) for name, of in self.tied.items())
        return [Tie(parameter=name, stages=tuple(of)) for name, of in stages if len(of) > 1]

    def _sizes(self, stages: Sequence[Share | StageCost]) -> list[int]:
        flights = zip(stages, self.aim.in_flight, strict=True)
        return [stage.memory_bytes(number) for stage, number in flights]

    def _peaks(
        self, stages: Sequence[Share | StageCost], sizes: list[int], ties: Iterable[Tie]
    ) -> tuple[int, ...]:
        """Return each rank's peak: stages share one workspace and hold a tied parameter once."""
        aim = self.aim
        peaks = list(aim.by_rank(sizes))
        if not aim.shares_ranks:
            return tuple(peaks)
        largest = [0] * aim.num_ranks
        for stage, rank in zip(stages, aim.rank_of, strict=True):
            workspace = (stage.cost if isinstance(stage, Share) else stage).workspace_bytes
            largest[rank] = max(largest[rank], workspace)
            peaks[rank] -= workspace
        for tie in ties:
            size = aim.state.of(self.graph.parameter[tie.parameter])
            for rank, number in Counter(aim.rank_of[stage] for stage in tie.stages).items():
                peaks[rank] -= (number - 1) * size
        return tuple(map(int.__add__, peaks, largest))

    def _score(
        self,
        seconds: Sequence[float],
        stages: Sequence[Share | StageCost],
        sent_bytes: int,
        ties: Iterable[Tie],
    ) -> Score:
        aim, sizes = self.aim, self._sizes(stages)
        loads = [aim.load(time, size) for time, size in zip(seconds, sizes, strict=True)]
        times, peaks = [0.0] * aim.num_ranks, self._peaks(stages, sizes, ties)
        for rank, time in zip(aim.rank_of, seconds, strict=True):
            times[rank] += time
        peak = max(peaks)
        return Score(
            excess_bytes=max(0, peak - aim.device_bytes) if aim.device_bytes else 0,
            price=max(map(aim.load, times, peaks)),
            load=max(loads),
            sent_bytes=sent_bytes,
            peak_bytes=peak,
        )

    def assign(self, ends: Sequence[int]) -> dict[str, int]:
        """Return the stage of each unit, from the ends of the stages in the chain."""
        starts = [0, *ends[:-1]]
        return {
            name: stage
            for stage, (start, end) in enumerate(zip(starts, ends, strict=True))
            for name in self.chain.names[start:end]
        }
