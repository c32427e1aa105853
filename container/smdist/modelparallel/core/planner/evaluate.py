# SPDX-License-Identifier: Apache-2.0
"""What one candidate takes: first at least, by arithmetic, then by simulation."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Final

from sagemaker_dist.errors import OptionError
from smdist.modelparallel.core.cost import Link
from smdist.modelparallel.core.errors import PlanError
from smdist.modelparallel.core.partition import Partition
from smdist.modelparallel.core.plan.text import seconds as told
from smdist.modelparallel.core.planner.candidates import Candidate
from smdist.modelparallel.core.planner.cuts import Cuts, most_in_flight, rank_of_stages
from smdist.modelparallel.core.planner.layout import Layout, slowness
from smdist.modelparallel.core.planner.problem import AUTO, Problem
from smdist.modelparallel.core.planner.room import Room
from smdist.modelparallel.core.planner.samples import Samples, View
from smdist.modelparallel.core.planner.split import Pipeline, Split, longest_line, split
from smdist.modelparallel.core.schedule import Schedule, make_schedule
from smdist.modelparallel.core.simulate import Timeline

_HOPS: Final = 20  # stages shorter than so many messages are not worth several on a rank
_TIGHTER: Final = 4  # how often the limit of a partition is lowered by what receive buffers took


@dataclass(frozen=True, kw_only=True)  # no slots: cached properties
class Trial:
    """A candidate that was simulated."""

    candidate: Candidate
    batch_size: int
    pipeline: Pipeline
    timeline: Timeline

    @cached_property
    def seconds_per_sample(self) -> float:
        """What everything is compared by: replicas work on batches of their own."""
        return self.timeline.step_seconds / (self.batch_size * self.candidate.data)

    @cached_property
    def peak_bytes(self) -> int:
        """Of the fullest rank."""
        return max(self.timeline.peak_bytes)

    @cached_property
    def fullest_rank(self) -> int:
        """The rank of the pipeline that holds the most."""
        return self.timeline.peak_bytes.index(self.peak_bytes)


@dataclass(frozen=True, slots=True, kw_only=True)
class Misfit:
    """A candidate that cannot run, or is not worth a try.

    Attributes:
        why: What stands in the way; None is memory.
    """

    candidate: Candidate
    why: OptionError | None = None


class Evaluator:
    """Candidates of one problem, with certain units opened."""

    def __init__(self, problem: Problem, samples: Samples) -> None:
        self._problem, self._samples = problem, samples
        self._cuts = Cuts(problem, samples)
        self._links: dict[int, tuple[Layout, Callable[[int, int], Link]]] = {}
        self._schedules: dict[Candidate, Schedule] = {}
        self._in_flight: dict[Candidate, tuple[int, ...]] = {}
        self._lines: dict[tuple[int, bool], float] = {}
        limit = problem.memory_limit_bytes
        self._room = None if limit is None else Room(limit_bytes=limit, state=problem.state)

    def is_exact(self, candidate: Candidate) -> bool:
        """Whether its size of microbatches was captured."""
        return self._view(candidate).is_exact

    def at_least(self, candidate: Candidate) -> float:
        """Seconds per sample that no partition can beat.

        With m microbatches and loads x of one stage a rank, rank r is done after the loads before
        it and m times its own. No loads x make the latest of these earlier than where all are
        equal: at total / (1 - (1 - 1 / m) ** ranks). Branches need not wait for each other, so
        the total is that of nodes which do.
        """
        total, slowest = self._samples.seconds(candidate.num_microbatches)
        count, ranks = candidate.num_microbatches, candidate.pipeline
        least = count * max(total / ranks, slowest)
        if candidate.virtual_stages == 1 and not candidate.kind.splits_backward:
            least = max(least, self._in_line(candidate) / (1 - (1 - 1 / count) ** ranks))
        return self._per_sample(candidate, least)

    def _in_line(self, candidate: Candidate) -> float:
        """Seconds of nodes that wait for each other, forward and backward."""
        view = self._view(candidate)
        key = (view.num_microbatches, view.is_exact)
        if key not in self._lines:
            self._lines[key] = longest_line(view.graph, view.costs)
        return self._lines[key]

    def splits(self, candidate: Candidate) -> Iterator[tuple[float, Split]]:
        """Partitions to simulate, and what each takes at least, in seconds per sample.

        Raises:
            OptionError: There is none, or no such schedule, or it is not worth a try.
        """
        view, joined = self._view(candidate), self._slowest_link(candidate)
        if self._cannot_fit(candidate):
            return
        for found in self._cuts.find(view, candidate, partial(self.schedule, candidate), joined):
            self._refuse_short_stages(candidate, found)
            cut = split(view.graph, found)
            least = self._pipeline(candidate, cut).least_seconds()
            yield self._per_sample(candidate, least), cut

    def simulate(self, candidate: Candidate, cut: Split) -> Trial:
        """Predict one step, however much memory that takes.

        Raises:
            OptionError: The schedule cannot be made with these numbers.
        """
        pipeline = self._pipeline(candidate, cut)
        return Trial(
            candidate=candidate,
            batch_size=self._problem.batch_size,
            pipeline=pipeline,
            timeline=pipeline.simulate(self.schedule(candidate)),
        )

    def fit(self, candidate: Candidate, cut: Split) -> Trial | None:
        """Predict one step, cut otherwise where it holds too much; None where nothing fits.

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
        """What the fullest rank holds at least, by sums; 0 where memory has no limit."""
        if self._room is None:
            return 0
        return self._room.least_bytes(self._view(candidate), candidate.pipeline)

    def may_fit(self, candidate: Candidate) -> bool:
        """Whether sums alone do not forbid it."""
        view = self._view(candidate)
        return self._room is None or self._room.may_fit(view, candidate.pipeline)

    def may_fit_finer(self, candidate: Candidate) -> bool:
        """Whether it might fit if units were as fine as one likes.

        By hand, stages need not be runs of the order of execution: nothing is known of them.
        """
        if self._room is None or candidate.virtual_stages > 1:
            return True
        if not self._problem.auto_partition:
            return True
        in_flight = self._most_in_flight(candidate)
        return self._room.may_fit_cut_anywhere(self._view(candidate), in_flight)

    def leanest(self, candidate: Candidate) -> Trial:
        """What a candidate takes and holds if it is cut for memory alone."""
        view = self._view(candidate)
        found = self._cuts.leanest(view, candidate, self.schedule(candidate))
        return self.simulate(candidate, split(view.graph, found))

    def _cut_for(self, candidate: Candidate, limit: int) -> Trial | None:
        """Leave room for receive buffers, as much as the last cut would have needed."""
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
        if room == limit and candidate.virtual_stages == 1:  # no cut fits, whatever is received
            if self._room is not None:
                in_flight = self._most_in_flight(candidate)
                self._room.did_not_fit(view, rank_of_stages(candidate), in_flight)
            return None
        trial = self.leanest(candidate)
        return trial if trial.peak_bytes <= limit else None

    def _least_peak(self, candidate: Candidate, cut: Split) -> int:
        """What the fullest rank holds at least; 0 where stages of a rank do not peak together."""
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
        """The actions of a candidate.

        Raises:
            OptionError: There is no such schedule with these numbers.
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

    def _pipeline(self, candidate: Candidate, cut: Split) -> Pipeline:
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

    def _layout(self, candidate: Candidate) -> tuple[Layout, Callable[[int, int], Link]]:
        if candidate.pipeline not in self._links:
            layout = Layout(
                cluster=self._problem.cluster,
                pipeline_size=candidate.pipeline,
                num_pipelines=candidate.data,
            )
            self._links[candidate.pipeline] = (layout, layout.links())
        return self._links[candidate.pipeline]

    def _per_sample(self, candidate: Candidate, step_seconds: float) -> float:
        return step_seconds / (self._problem.batch_size * candidate.data)
