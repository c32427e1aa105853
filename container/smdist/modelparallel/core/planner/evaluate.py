# SPDX-License-Identifier: Apache-2.0
"""Evaluation of one candidate: first a lower bound by arithmetic, then a simulation."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Final

from sagemaker_dist.errors import OptionError
from smdist.modelparallel.core.cost import Link
from smdist.modelparallel.core.partition import Partition
from smdist.modelparallel.core.plan.number_format import seconds as told
from smdist.modelparallel.core.plan_errors import PlanError
from smdist.modelparallel.core.planner.candidate_pipeline import (
    CandidatePipeline,
    Pipeline,
    longest_line,
    split,
)
from smdist.modelparallel.core.planner.candidates import Candidate
from smdist.modelparallel.core.planner.cost_samples import Samples, View
from smdist.modelparallel.core.planner.cuts import Cuts, rank_of_stages
from smdist.modelparallel.core.planner.memory_bounds import Room
from smdist.modelparallel.core.planner.pipeline_layout import PipelineLayout, slowness
from smdist.modelparallel.core.planner.problem import AUTO, Problem
from smdist.modelparallel.core.schedule import Schedule, make_schedule, most_in_flight
from smdist.modelparallel.core.simulate import Timeline

_HOPS: Final = 20  # latencies: a stage that takes less is too short for several stages a rank
_TIGHTER: Final = 4  # cuts with a limit lowered by the bytes of receive buffers


@dataclass(frozen=True, kw_only=True)  # no slots: the class has cached properties
class SimulatedCandidate:
    """Candidate with its simulated step."""

    candidate: Candidate
    batch_size: int
    pipeline: Pipeline
    timeline: Timeline

    @cached_property
    def seconds_per_sample(self) -> float:
        """Seconds per sample, over all replicas; candidates are compared by it."""
        return self.timeline.step_seconds / (self.batch_size * self.candidate.data)

    @cached_property
    def peak_bytes(self) -> int:
        """Bytes that the fullest rank holds."""
        return max(self.timeline.peak_bytes)

    @cached_property
    def fullest_rank(self) -> int:
        """Rank of the pipeline that holds the most bytes."""
        return self.timeline.peak_bytes.index(self.peak_bytes)


@dataclass(frozen=True, slots=True, kw_only=True)
class Misfit:
    """Candidate that cannot run, or is not worth trying.

    Attributes:
        candidate: The candidate.
        why: Reason; None if it does not fit in memory.
    """

    candidate: Candidate
    why: OptionError | None = None


class Evaluator:
    """Evaluator of the candidates of one problem, with certain units opened."""

    def __init__(self, problem: Problem, samples: Samples) -> None:
        self._problem, self._samples = problem, samples
        self._cuts = Cuts(problem, samples)
        self._links: dict[int, tuple[PipelineLayout, Callable[[int, int], Link]]] = {}
        self._schedules: dict[Candidate, Schedule] = {}
        self._in_flight: dict[Candidate, tuple[int, ...]] = {}
        self._lines: dict[tuple[int, bool], float] = {}
        limit = problem.memory_limit_bytes
        self._room = None if limit is None else Room(limit_bytes=limit, state=problem.state)

    def is_exact(self, candidate: Candidate) -> bool:
        """Tell whether the candidate's size of microbatches was captured."""
        return self._view(candidate).is_exact

    def at_least(self, candidate: Candidate) -> float:
        """Return a lower bound on the seconds per sample, for all partitions.

        With m microbatches and one stage of load x on each rank, a rank finishes after the loads
        before it and m times its own load. No loads x make the last rank finish earlier than at
        total / (1 - (1 - 1 / m) ** ranks), where all ranks finish together. Parallel branches of
        the model need not wait for each other, so the total is that of the longest chain of nodes
        that do.
        """
        total, slowest = self._samples.seconds(candidate.num_microbatches)
        count, ranks = candidate.num_microbatches, candidate.pipeline
        least = count * max(total / ranks, slowest)
        if candidate.virtual_stages == 1 and not candidate.kind.splits_backward:
            least = max(least, self._in_line(candidate) / (1 - (1 - 1 / count) ** ranks))
        return self._per_sample(candidate, least)

    def _in_line(self, candidate: Candidate) -> float:
        """Return the seconds of the longest chain of dependent nodes, forward and backward."""
        view = self._view(candidate)
        key = (view.num_microbatches, view.is_exact)
        if key not in self._lines:
            self._lines[key] = longest_line(view.graph, view.costs)
        return self._lines[key]

    def splits(self, candidate: Candidate) -> Iterator[tuple[float, CandidatePipeline]]:
        """Yield the partitions to simulate, each with a lower bound on its seconds per sample.

        Raises:
            OptionError: No partition or no schedule exists, or it is not worth trying.
        """
        view, joined = self._view(candidate), self._slowest_link(candidate)
        if self._cannot_fit(candidate):
            return
        for found in self._cuts.find(view, candidate, partial(self.schedule, candidate), joined):
            self._refuse_short_stages(candidate, found)
            cut = split(view.graph, found)
            least = self._pipeline(candidate, cut).least_seconds()
            yield self._per_sample(candidate, least), cut

    def simulate(self, candidate: Candidate, cut: CandidatePipeline) -> SimulatedCandidate:
        """Simulate one step, without a limit of memory.

        Raises:
            OptionError: The schedule cannot be made with these numbers.
        """
        pipeline = self._pipeline(candidate, cut)
        return SimulatedCandidate(
            candidate=candidate,
            batch_size=self._problem.batch_size,
            pipeline=pipeline,
            timeline=pipeline.simulate(self.schedule(candidate)),
        )

    def fit(self, candidate: Candidate, cut: CandidatePipeline) -> SimulatedCandidate | None:
        """Simulate one step, with another cut if this one holds too much; None if no cut fits.

        Raises:
            OptionError: The schedule cannot be made with these numbers.
        """
        limit = self._problem.memory_limit_bytes
        if limit is None:
            return self.simulate(candidate, cut)
        if self._cannot_fit(candidate):
            return None
        if self._least_peak(candidate, cut) <= limit:
            trial = self.simulate(candidate, cut)
            if trial.peak_bytes <= limit:
                return trial
        return self._cut_for(candidate, limit)

    def least_bytes(self, candidate: Candidate) -> int:
        """Return a lower bound on the fullest rank's bytes, from sums; 0 if memory is unlimited."""
        if self._room is None:
            return 0
        return self._room.least_bytes(self._view(candidate), candidate.pipeline)

    def may_fit(self, candidate: Candidate) -> bool:
        """Tell whether the candidate may fit in memory, judged by sums alone."""
        view = self._view(candidate)
        return self._room is None or self._room.may_fit(view, candidate.pipeline)

    def may_fit_finer(self, candidate: Candidate) -> bool:
        """Tell whether the candidate might fit in memory if units were arbitrarily fine.

        If the user placed the units, stages need not be runs in the order of execution, so the
        answer is always True.
        """
        if self._room is None or candidate.virtual_stages > 1:
            return True
        if not self._problem.auto_partition:
            return True
        in_flight = self._most_in_flight(candidate)
        return self._room.may_fit_cut_anywhere(self._view(candidate), in_flight)

    def leanest(self, candidate: Candidate) -> SimulatedCandidate:
        """Simulate a candidate that is cut for the least memory."""
        view = self._view(candidate)
        found = self._cuts.leanest(view, candidate, self.schedule(candidate))
        return self.simulate(candidate, split(view.graph, found))

    def _cut_for(self, candidate: Candidate, limit: int) -> SimulatedCandidate | None:
        """Cut for a lower limit, which leaves memory for the last cut's receive buffers."""
        view, schedule, room = self._view(candidate), self.schedule(candidate), limit
        for _ in range(_TIGHTER):
            try:
                found = self._cuts.within(view, candidate, schedule, room)
            except OptionError:
                break
            trial = self.simulate(candidate, split(view.graph, found))
            if trial.peak_bytes <= limit:
                return trial
            room -= trial.peak_bytes - limit
        if room == limit and candidate.virtual_stages == 1:  # too full even without receive buffers
            if self._room is not None:
                in_flight = self._most_in_flight(candidate)
                self._room.did_not_fit(view, rank_of_stages(candidate), in_flight)
            return None
        trial = self.leanest(candidate)
        return trial if trial.peak_bytes <= limit else None

    def _least_peak(self, candidate: Candidate, cut: CandidatePipeline) -> int:
        """Return a lower bound on the fullest rank's bytes; 0 if a rank has several stages."""
        if candidate.virtual_stages > 1:
            return 0
        found, in_flight = cut.partition, self._most_in_flight(candidate)
        return max(
            state + number * cost.saved_bytes + cost.workspace_bytes
            for state, number, cost in zip(found.state_bytes, in_flight, found.costs, strict=True)
        )

    def _cannot_fit(self, candidate: Candidate) -> bool:
        if self._room is None:
            return False
        view, rank_of = self._view(candidate), rank_of_stages(candidate)
        if not self._room.may_fit(view, candidate.pipeline) or not self.may_fit_finer(candidate):
            return True
        return self._room.is_worse(view, rank_of, partial(self._most_in_flight, candidate))

    def _most_in_flight(self, candidate: Candidate) -> tuple[int, ...]:
        if candidate not in self._in_flight:
            self._in_flight[candidate] = most_in_flight(self.schedule(candidate))
        return self._in_flight[candidate]

    def schedule(self, candidate: Candidate) -> Schedule:
        """Return the schedule of a candidate.

        Raises:
            OptionError: The schedule cannot be made with these numbers.
        """
        key = replace(candidate, preference=0)
        if key not in self._schedules:
            self._schedules[key] = make_schedule(
                candidate.schedule,
                num_ranks=candidate.pipeline,
                num_microbatches=candidate.num_microbatches,
                virtual_stages=candidate.virtual_stages,
                active_microbatches=candidate.active_microbatches,
            )
        return self._schedules[key]

    def _refuse_short_stages(self, candidate: Candidate, cut: Partition) -> None:
        if self._problem.schedule != AUTO or candidate.virtual_stages == 1:
            return
        if self._problem.virtual_stages:
            return
        costs = cut.costs
        seconds = sum(cost.seconds for cost in costs) / len(costs)
        hop = self._slowest_link(candidate).latency_seconds
        if seconds <= _HOPS * hop:
            what = f"a stage takes {told(seconds)} and sending a message {told(hop)}"
            why = f"several stages a rank gain only where a stage takes {_HOPS} times as long"
            raise PlanError(what, why, "Ask for the schedule by name to have it all the same")

    def _slowest_link(self, candidate: Candidate) -> Link:
        link = self._layout(candidate)[1]
        neighbours = (link(rank, rank + 1) for rank in range(candidate.pipeline - 1))
        return max(neighbours, key=slowness, default=Link())

    def _pipeline(self, candidate: Candidate, cut: CandidatePipeline) -> Pipeline:
        layout, link = self._layout(candidate)
        return Pipeline(
            split=cut,
            rank_of=rank_of_stages(candidate),
            num_microbatches=candidate.num_microbatches,
            splits_backward=candidate.kind.splits_backward,
            layout=layout,
            link=link,
            state=self._problem.state,
            split_overhead=self._problem.split_overhead,
        )

    def _view(self, candidate: Candidate) -> View:
        return self._samples.view(candidate.num_microbatches)

    def _layout(self, candidate: Candidate) -> tuple[PipelineLayout, Callable[[int, int], Link]]:
        if candidate.pipeline not in self._links:
            layout = PipelineLayout(
                cluster=self._problem.cluster,
                pipeline_size=candidate.pipeline,
                num_pipelines=candidate.data,
            )
            self._links[candidate.pipeline] = (layout, layout.links())
        return self._links[candidate.pipeline]

    def _per_sample(self, candidate: Candidate, step_seconds: float) -> float:
        return step_seconds / (self._problem.batch_size * candidate.data)
