# SPDX-License-Identifier: Apache-2.0
"""How good an assignment of units to stages is: one order for every search that compares two."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise

from smdist.modelparallel.core.cost import Costs, NodeCost
from smdist.modelparallel.core.graph import Graph
from smdist.modelparallel.core.partition.aim import Aim
from smdist.modelparallel.core.partition.chain import Chain, Span, ways_of
from smdist.modelparallel.core.partition.shares import Share, shares_of
from smdist.modelparallel.core.placement import Placement, place

Objective = Callable[[Sequence[NodeCost], Placement], float]
"""Seconds of a step from the costs of each stage and what travels between them."""


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class Score:
    """The lower the better, the first field first.

    Attributes:
        excess_bytes: What the fullest rank holds beyond its device.
        price: What the objective says; without one, the largest sum of loads of a rank.
        load: Of the stage with the largest.
        sent_bytes: Over all edges, both ways.
        peak_bytes: Of the fullest rank.
    """

    excess_bytes: int
    price: float
    load: float
    sent_bytes: int
    peak_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Judge:
    """Scores assignments of one graph.

    Attributes:
        known: Runs of the chain that were scored before.
    """

    graph: Graph
    costs: Costs
    chain: Chain
    aim: Aim
    objective: Objective | None
    known: dict[tuple[int, int], Span] = field(default_factory=dict)

    def place(self, stage_of: Mapping[str, int]) -> Placement:
        """The whole graph on stages."""
        return place(self.graph, stage_of, num_stages=self.aim.num_stages)

    def shares(self, placement: Placement) -> tuple[Share, ...]:
        """What each stage costs."""
        return shares_of(self.graph, self.costs, placement, self.aim)

    def peaks(self, shares: Sequence[Share]) -> tuple[int, ...]:
        """What each rank holds at most."""
        pairs = zip(shares, self.aim.in_flight, strict=True)
        return self.aim.by_rank([share.memory_bytes(number) for share, number in pairs])

    def seconds(self, shares: Sequence[Share]) -> tuple[float, ...]:
        """Time of each stage with its exposed communication."""
        wire = self.aim.wire_seconds
        return tuple(s.cost.seconds + wire(s.num_messages, s.wire_bytes) for s in shares)

    def score(self, placement: Placement) -> Score:
        """How good a placement is."""
        shares = self.shares(placement)
        wires = [ways_of(edge) * edge.num_bytes for edge in placement.edges]
        score = self._score(self.seconds(shares), shares, sum(wires))
        if self.objective is None:
            return score
        return replace(score, price=self.objective([s.cost for s in shares], placement))

    def score_cuts(self, ends: Sequence[int]) -> Score:
        """How good cuts of the chain are: the same score, without placing where nobody asks."""
        if self.objective is not None:
            return self.score(self.place(self.assign(ends)))
        spans = [self._span(at) for at in pairwise([0, *ends])]
        wire = self.aim.wire_seconds
        seconds = [s.seconds + wire(s.num_messages, s.wire_bytes) for s in spans]
        return self._score(seconds, spans, sum(span.received_bytes for span in spans))

    def _span(self, ends: tuple[int, int]) -> Span:
        if ends not in self.known:
            self.known[ends] = self.chain.span(*ends)
        return self.known[ends]

    def _score(
        self, seconds: Sequence[float], stages: Sequence[Share | Span], sent_bytes: int
    ) -> Score:
        aim = self.aim
        flights = zip(stages, aim.in_flight, strict=True)
        sizes = [stage.memory_bytes(number) for stage, number in flights]
        loads = [aim.load(time, size) for time, size in zip(seconds, sizes, strict=True)]
        sums, peak = [0.0] * aim.num_ranks, max(aim.by_rank(sizes))
        for rank, load in zip(aim.rank_of, loads, strict=True):
            sums[rank] += load
        return Score(
            excess_bytes=max(0, peak - aim.device_bytes) if aim.device_bytes else 0,
            price=max(sums),
            load=max(loads),
            sent_bytes=sent_bytes,
            peak_bytes=peak,
        )

    def assign(self, ends: Sequence[int]) -> dict[str, int]:
        """The stage of each unit, from where the stages of the chain end."""
        starts = [0, *ends[:-1]]
        return {
            name: stage
            for stage, (start, end) in enumerate(zip(starts, ends, strict=True))
            for name in self.chain.names[start:end]
        }
