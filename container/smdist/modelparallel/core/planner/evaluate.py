# SPDX-License-Identifier: Apache-2.0
"""Evaluation of candidates: lower bounds on time and memory first, then a simulation.

A candidate is a combination of parallel degrees, schedule and number of microbatches.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Final

from sagemaker_dist.errors import OptionError
from smdist.modelparallel.core.cost import Link
from smdist.modelparallel.core.partition import Partition
from smdist.modelparallel.core.plan.number_format import seconds as format_seconds
from smdist.modelparallel.core.plan_errors import PlanError
from smdist.modelparallel.core.planner.candidate_pipeline import (
    CandidatePipeline,
    Pipeline,
    longest_chain,
    split,
)
from smdist.modelparallel.core.planner.candidates import Candidate
from smdist.modelparallel.core.planner.cost_samples import Samples, View
from smdist.modelparallel.core.planner.cuts import Cuts, rank_of_stages
from smdist.modelparallel.core.planner.memory_bounds import MemoryBounds
from smdist.modelparallel.core.planner.pipeline_layout import PipelineLayout, slowness
from smdist.modelparallel.core.planner.problem import AUTO, Problem
from smdist.modelparallel.core.schedule import Schedule, make_schedule, most_in_flight
from smdist.modelparallel.core.simulate import Timeline

_HOPS: Final = 20  # a rank has several stages only if a stage takes longer than 20 latencies
_TIGHTER: Final = 4  # largest number of partitions with a limit lowered for receive buffers


@dataclass(frozen=True, kw_only=True)  # no slots: the class has cached properties
class SimulatedCandidate:
    """Candidate with the timeline of its simulated step."""

    candidate: Candidate
    batch_size: int
    pipeline: Pipeline
    timeline: Timeline

    @cached_property
    def seconds_per_sample(self) -> float:
        """Seconds of a step, divided by the number of samples of all pipelines in the step."""
        return self.timeline.step_seconds / (self.batch_size * self.candidate.data)

    @cached_property
    def peak_bytes(self) -> int:
        """Largest number of bytes that a rank of the pipeline holds."""
        return max(self.timeline.peak_bytes)

    @cached_property
    def fullest_rank(self) -> int:
        """Rank, within the pipeline, that holds the most bytes."""
        return self.timeline.peak_bytes.index(self.peak_bytes)


@dataclass(frozen=True, slots=True, kw_only=True)
class Misfit:
    """Candidate that the planner excluded, with the reason.

    Attributes:
        candidate: Degrees, schedule and number of microbatches.
        why: Error that explains the reason; None if the candidate does not fit in memory.
    """

    candidate: Candidate
    why: OptionError | None = None


class Evaluator:
    """Evaluator that computes time and memory of the planner's candidates.

    A candidate is a combination of parallel degrees, schedule and number of microbatches.
    """

    def __init__(self, problem: Problem, samples: Samples) -> None:
        self._problem, self._samples = problem, samples
        self._cuts = Cuts(problem, samples)
        self._links: dict[int, tuple[PipelineLayout, Callable[[int, int], Link]]] = {}
        self._schedules: dict[Candidate, Schedule] = {}
        self._in_flight: dict[Candidate, tuple[int, ...]] = {}
        self._chain_seconds: dict[tuple[int, bool], float] = {}
        limit = problem.memory_limit_bytes
        self._memory = (
            None if limit is None else MemoryBounds(limit_bytes=limit, state=problem.state)
        )

    def is_exact(self, candidate: Candidate) -> bool:
        """Return True if the model was recorded and measured at the candidate's microbatch size.

        False means that graph and costs are interpolated between two other sizes.
        """
        return self._view(candidate).is_exact

    def at_least(self, candidate: Candidate) -> float:
        """Return the seconds per sample that a candidate needs at least.

        No division of the model into stages can be faster.
        """
        total, slowest = self._samples.seconds(candidate.num_microbatches)
        count, ranks = candidate.num_microbatches, candidate.pipeline
        least = count * max(total / ranks, slowest)
        # A rank finishes after 1 microbatch on each earlier stage and `count` on its own stage. The
        # step is shortest if all ranks finish together, after this time.
        if candidate.virtual_stages == 1 and not candidate.kind.splits_backward:
            least = max(least, self._longest_chain(candidate) / (1 - (1 - 1 / count) ** ranks))
        return self._per_sample(candidate, least)

    def _longest_chain(self, candidate: Candidate) -> float:
        """Return the seconds of the slowest chain of nodes, in forward and backward pass together.

        In a chain, each node needs the result of the previous node.
        """
        view = self._view(candidate)
        key = (view.num_microbatches, view.is_exact)
        if key not in self._chain_seconds:
            self._chain_seconds[key] = longest_chain(view.graph, view.costs)
        return self._chain_seconds[key]

    def splits(self, candidate: Candidate) -> Iterator[tuple[float, CandidatePipeline]]:
        """Yield (lower bound on the seconds per sample, partition) for each partition to simulate.

        The bound is that of the partition, or that of the candidate if the partition may need too
        much memory: then `fit` uses another partition, which may be faster. Nothing is yielded if
        the candidate cannot fit in memory.

        Raises:
            OptionError: The model cannot be divided into so many stages, the schedule cannot be
                made, or a rank would have several stages that are too short.
        """
        view, joined = self._view(candidate), self._slowest_link(candidate)
        if self._cannot_fit(candidate):
            return
        for found in self._cuts.find(view, candidate, partial(self.schedule, candidate), joined):
            self._check_stage_length(candidate, found)
            cut = split(view.graph, found)
            least = self._per_sample(candidate, self._pipeline(candidate, cut).least_seconds())
            if not self._surely_fits(candidate, cut):
                least = min(least, self.at_least(candidate))
            yield least, cut

    def simulate(self, candidate: Candidate, cut: CandidatePipeline) -> SimulatedCandidate:
        """Return the simulation of one step of a candidate, whether it fits in memory or not.

        Args:
            candidate: Degrees, schedule and number of microbatches.
            cut: Stages of the candidate's pipeline.

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
        """Return the simulation of one step of a candidate within the memory limit.

        Args:
            candidate: Degrees, schedule and number of microbatches.
            cut: Stages to use if they fit in memory; otherwise other stages are computed.

        Returns:
            Simulated step; None if no stages fit in memory.

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
        """Return the bytes that the fullest rank needs at least; 0 if memory is unlimited.

        The number is computed from the memory of the whole model, without dividing it into stages.
        """
        if self._memory is None:
            return 0
        return self._memory.least_bytes(self._view(candidate), candidate.pipeline)

    def may_fit(self, candidate: Candidate) -> bool:
        """Return False if the memory of the whole model shows that the candidate cannot fit."""
        view = self._view(candidate)
        return self._memory is None or self._memory.may_fit(view, candidate.pipeline)

    def may_fit_finer(self, candidate: Candidate) -> bool:
        """Return False if the candidate does not fit in memory even if modules are divided.

        The result is True, without a check, if the user marked the stages, or if ranks have several
        stages.
        """
        if self._memory is None or candidate.virtual_stages > 1:
            return True
        if not self._problem.auto_partition:
            return True
        in_flight = self._most_in_flight(candidate)
        return self._memory.may_fit_if_divisible(self._view(candidate), in_flight)

    def leanest(self, candidate: Candidate) -> SimulatedCandidate:
        """Simulate a candidate with the partition that needs the least memory."""
        view = self._view(candidate)
        found = self._cuts.leanest(view, candidate, self.schedule(candidate))
        return self.simulate(candidate, split(view.graph, found))

    def _cut_for(self, candidate: Candidate, limit: int) -> SimulatedCandidate | None:
        """Return the simulation of a candidate with stages that fit in `limit` bytes on each rank.

        Stages are computed for lower and lower limits, until buffers for received messages fit as
        well. None is returned if no stages fit.
        """
        view, schedule, lowered = self._view(candidate), self.schedule(candidate), limit
        for _ in range(_TIGHTER):
            try:
                found = self._cuts.within(view, candidate, schedule, lowered)
            except OptionError:
                break
            trial = self.simulate(candidate, split(view.graph, found))
            if trial.peak_bytes <= limit:
                return trial
            lowered -= trial.peak_bytes - limit
        if (
            lowered == limit and candidate.virtual_stages == 1
        ):  # too full even without receive buffers
            if self._memory is not None:
                in_flight = self._most_in_flight(candidate)
                self._memory.record_misfit(view, rank_of_stages(candidate), in_flight)
            return None
        trial = self.leanest(candidate)
        return trial if trial.peak_bytes <= limit else None

    def _least_peak(self, candidate: Candidate, cut: CandidatePipeline) -> int:
        """Return the bytes that the fullest rank of a partition holds at least.

        The result is 0 if ranks have several stages: only a simulation shows their memory.
        """
        if candidate.virtual_stages > 1:
            return 0
        found, in_flight = cut.partition, self._most_in_flight(candidate)
        return max(
            state + number * cost.saved_bytes + cost.workspace_bytes
            for state, number, cost in zip(found.state_bytes, in_flight, found.costs, strict=True)
        )

    def _surely_fits(self, candidate: Candidate, cut: CandidatePipeline) -> bool:
        """Return True if each rank of a partition fits in memory, however messages overlap."""
        limit = self._problem.memory_limit_bytes
        if limit is None:
            return True
        found, messages = cut.partition, 2 * max(2, candidate.num_microbatches)
        received = messages * sum(edge.num_bytes for edge in found.placement.edges)
        held, workspace = [received] * candidate.pipeline, [0] * candidate.pipeline
        stages = zip(
            rank_of_stages(candidate),
            found.state_bytes,
            self._most_in_flight(candidate),
            found.costs,
            strict=True,
        )
        for rank, state, number, cost in stages:
            held[rank] += state + number * cost.saved_bytes
            workspace[rank] = max(workspace[rank], cost.workspace_bytes)
        return all(a + b <= limit for a, b in zip(held, workspace, strict=True))

    def _cannot_fit(self, candidate: Candidate) -> bool:
        """Return True if the candidate certainly needs too much memory."""
        if self._memory is None:
            return False
        view, rank_of = self._view(candidate), rank_of_stages(candidate)
        if not self._memory.may_fit(view, candidate.pipeline) or not self.may_fit_finer(candidate):
            return True
        return self._memory.needs_more_than_a_misfit(
            view, rank_of, partial(self._most_in_flight, candidate)
        )

    def _most_in_flight(self, candidate: Candidate) -> tuple[int, ...]:
        """Return the largest number of microbatches in flight on each stage, by stage."""
        if candidate not in self._in_flight:
            self._in_flight[candidate] = most_in_flight(self.schedule(candidate))
        return self._in_flight[candidate]

    def schedule(self, candidate: Candidate) -> Schedule:
        """Return the schedule of a candidate.

        Raises:
            OptionError: The schedule does not support the candidate's numbers of ranks,
                microbatches and stages.
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

    def _check_stage_length(self, candidate: Candidate, cut: Partition) -> None:
        """Check that stages are long enough for several stages on each rank.

        This is checked only if the planner has chosen the schedule, not if the user requested it.

        Args:
            candidate: Degrees, schedule and number of microbatches.
            cut: Stages of the candidate's pipeline.

        Raises:
            PlanError: A stage takes less than 20 times the latency of a message.
        """
        if self._problem.schedule != AUTO or candidate.virtual_stages == 1:
            return
        if self._problem.virtual_stages:
            return
        costs = cut.costs
        seconds = sum(cost.seconds for cost in costs) / len(costs)
        hop = self._slowest_link(candidate).latency_seconds
        if seconds <= _HOPS * hop:
            what = f"a stage takes {format_seconds(seconds)}, and a message {format_seconds(hop)}"
            why = (
                "the planner puts several stages on a rank only if a stage takes more than"
                f" {_HOPS} times as long as a message"
            )
            hint = f"Request the schedule {candidate.schedule!r} by name to allow shorter stages"
            raise PlanError(what, why, hint)

    def _slowest_link(self, candidate: Candidate) -> Link:
        """Return the slowest link between neighbour ranks of the candidate's pipelines.

        If a pipeline has only one rank, the result is a link on which messages take no time.
        """
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
            overlaps_sums=self._problem.overlaps_sums,
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
