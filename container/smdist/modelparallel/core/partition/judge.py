# SPDX-License-Identifier: Apache-2.0
"""How good an assignment of units to stages is: one order for every search that compares two."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from smdist.modelparallel.core.cost import Costs, NodeCost
from smdist.modelparallel.core.graph import Graph
from smdist.modelparallel.core.partition.aim import Aim
from smdist.modelparallel.core.partition.chain import Chain, ways_of
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
    """Scores assignments of one graph."""

    graph: Graph
    costs: Costs
    chain: Chain
    aim: Aim
    objective: Objective | None

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
        shares, aim = self.shares(placement), self.aim
        peak = max(self.peaks(shares))
        loads = [
            aim.load(seconds, share.memory_bytes(number))
            for seconds, share, number in zip(
                self.seconds(shares), shares, aim.in_flight, strict=True
            )
        ]
        return Score(
            excess_bytes=max(0, peak - aim.device_bytes) if aim.device_bytes else 0,
            price=self._price(shares, placement, loads),
            load=max(loads),
            sent_bytes=sum(ways_of(edge) * edge.num_bytes for edge in placement.edges),
            peak_bytes=peak,
        )

    def _price(
        self, shares: Sequence[Share], placement: Placement, loads: Sequence[float]
    ) -> float:
        if self.objective is not None:
            return self.objective([share.cost for share in shares], placement)
        sums = [0.0] * self.aim.num_ranks
        for rank, load in zip(self.aim.rank_of, loads, strict=True):
            sums[rank] += load
        return max(sums)

    def assign(self, ends: Sequence[int]) -> dict[str, int]:
        """The stage of each unit, from where the stages of the chain end."""
        starts = [0, *ends[:-1]]
        return {
            name: stage
            for stage, (start, end) in enumerate(zip(starts, ends, strict=True))
            for name in self.chain.names[start:end]
        }

    def score_cuts(self, ends: Sequence[int]) -> Score:
        """How good cuts of the chain are."""
        return self.score(self.place(self.assign(ends)))
