# SPDX-License-Identifier: Apache-2.0
"""How good an assignment of units to stages is: one order for every search that compares two."""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import pairwise

from smdist.modelparallel.core.cost import Costs, NodeCost
from smdist.modelparallel.core.graph import Graph
from smdist.modelparallel.core.partition.aim import Aim
from smdist.modelparallel.core.partition.chain import Chain, Span, ways_of
from smdist.modelparallel.core.partition.shares import Share, shares_of
from smdist.modelparallel.core.placement import Placement, Tie, place

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


@dataclass(frozen=True, kw_only=True)  # no slots: cached properties
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

    @cached_property
    def tied(self) -> dict[str, list[int]]:
        """Where in the chain the parameters of several units are."""
        found: dict[str, list[int]] = {}
        for at, piece in enumerate(self.chain.pieces):
            for name in piece.parameters:
                found.setdefault(name, []).append(at)
        return {name: of for name, of in found.items() if len(of) > 1}

    def place(self, stage_of: Mapping[str, int]) -> Placement:
        """The whole graph on stages."""
        return place(self.graph, stage_of, num_stages=self.aim.num_stages)

    def shares(self, placement: Placement) -> tuple[Share, ...]:
        """What each stage costs."""
        return shares_of(self.graph, self.costs, placement, self.aim)

    def peaks(self, shares: Sequence[Share], placement: Placement) -> tuple[int, ...]:
        """What each rank holds at most."""
        return self._peaks(shares, self._sizes(shares), placement.ties)

    def seconds(self, shares: Sequence[Share]) -> tuple[float, ...]:
        """Time of each stage with its exposed communication."""
        wire = self.aim.wire_seconds
        return tuple(s.cost.seconds + wire(s.num_messages, s.wire_bytes) for s in shares)

    def score(self, placement: Placement) -> Score:
        """How good a placement is."""
        shares = self.shares(placement)
        wires = [ways_of(edge) * edge.num_bytes for edge in placement.edges]
        score = self._score(self.seconds(shares), shares, sum(wires), placement.ties)
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
        received = sum(span.received_bytes for span in spans)
        return self._score(seconds, spans, received, self._ties(ends))

    def _span(self, ends: tuple[int, int]) -> Span:
        if ends not in self.known:
            self.known[ends] = self.chain.span(*ends)
        return self.known[ends]

    def _ties(self, ends: Sequence[int]) -> list[Tie]:
        """Parameters of several stages, where stages end there; for ranks of several alone."""
        if not self.aim.shares_ranks:
            return []
        stages = ((name, {bisect_right(ends, at) for at in of}) for name, of in self.tied.items())
        return [Tie(parameter=name, stages=tuple(of)) for name, of in stages if len(of) > 1]

    def _sizes(self, stages: Sequence[Share | Span]) -> list[int]:
        flights = zip(stages, self.aim.in_flight, strict=True)
        return [stage.memory_bytes(number) for stage, number in flights]

    def _peaks(
        self, stages: Sequence[Share | Span], sizes: list[int], ties: Iterable[Tie]
    ) -> tuple[int, ...]:
        """By rank: its stages take turns with one workspace, and hold a tied parameter once."""
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
        stages: Sequence[Share | Span],
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
        """The stage of each unit, from where the stages of the chain end."""
        starts = [0, *ends[:-1]]
        return {
            name: stage
            for stage, (start, end) in enumerate(zip(starts, ends, strict=True))
            for name in self.chain.names[start:end]
        }
