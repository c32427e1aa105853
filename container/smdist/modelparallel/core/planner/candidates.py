# SPDX-License-Identifier: Apache-2.0
"""Candidates of the planner: combinations of degrees, schedule and number of microbatches."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from smdist.modelparallel.core.plan.number_format import number, way
from smdist.modelparallel.core.plan.plan_check import divisors
from smdist.modelparallel.core.planner.problem import AUTO, Problem
from smdist.modelparallel.core.schedule import SCHEDULES, ScheduleKind

# Schedules that "auto" tries. Of equally fast ones, the first wins: it needs the least memory.
# "looped_bfs" holds as many microbatches as "simple", and "dualpipe_v" as many as "zero_bubble_v",
# so both are used only if requested by name.
_AUTO: Final = (
    "1f1b",
    "zero_bubble",
    "interleaved",
    "interleaved_1f1b",
    "zero_bubble_v",
    "simple",
)
LEAN: Final = ("1f1b", "zero_bubble")  # schedules that hold the fewest microbatches
_EXTRA_ACTIVE: Final = range(5)  # active microbatches beyond the number of ranks
_VIRTUAL: Final = (2, 4)  # numbers of stages on each rank that are tried
_MOST_PER_RANK: Final = 16  # microbatches; with more, the bubble is below 6 % and overheads grow


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """Combination of degrees, schedule and number of microbatches that the planner may choose.

    Attributes:
        pipeline: Number of ranks of one pipeline.
        data: Number of parallel pipelines.
        schedule: Name of the schedule.
        num_microbatches: Number of microbatches of a step.
        virtual_stages: Number of stages on each rank.
        active_microbatches: Largest number of microbatches in flight, for the schedule
            "interleaved"; None for others.
        preference: Number that decides between equally fast candidates; the lowest wins.
    """

    pipeline: int
    data: int
    schedule: str
    num_microbatches: int
    virtual_stages: int = 1
    active_microbatches: int | None = None
    preference: int = 0

    @property
    def num_stages(self) -> int:
        """Number of stages of the pipeline."""
        return self.pipeline * self.virtual_stages

    @property
    def kind(self) -> ScheduleKind:
        """Entry of the schedule in the catalog: its limits, and the function that computes it."""
        return SCHEDULES[self.schedule]

    def __str__(self) -> str:
        pipelines, ranks = number(self.data, "pipeline"), number(self.pipeline, "rank")
        how = way(self.schedule, self.virtual_stages, self.active_microbatches)
        return f"{pipelines} of {ranks}, {how}, {number(self.num_microbatches, 'microbatch')}"


def microbatch_choices(problem: Problem) -> tuple[int, ...]:
    """Return the numbers of microbatches to try. The batch size is divisible by each of them."""
    if problem.microbatches:
        return (problem.microbatches,)
    most = _MOST_PER_RANK * (problem.pipeline_parallel_degree or problem.cluster.size)
    wanted = (each for each in divisors(problem.batch_size) if each <= most)
    return tuple(each for each in wanted if each not in problem.dropped)


def degree_choices(problem: Problem) -> tuple[int, ...]:
    """Return the numbers of ranks of a pipeline to try.

    A pipeline of one rank is left out if the user sets an option that only longer pipelines use,
    such as `active_microbatches`, and the cluster has several ranks.
    """
    if problem.pipeline_parallel_degree:
        return (problem.pipeline_parallel_degree,)
    if problem.data_parallel_degree:
        return (problem.cluster.size // problem.data_parallel_degree,)
    degrees = divisors(problem.cluster.size)
    wants_pipeline = (problem.virtual_stages or 1) > 1 or problem.active_microbatches
    return degrees[1:] or degrees if wants_pipeline else degrees


def candidates(problem: Problem, num_units: int) -> Iterator[Candidate]:
    """Yield all candidates to try for a model.

    Args:
        problem: Model, cluster, batch and options.
        num_units: Number of the model's units (undivided modules), the largest number of stages.
    """
    for pipeline in degree_choices(problem):
        for count in microbatch_choices(problem):
            yield from _of(problem, pipeline, count, num_units)


def _of(problem: Problem, pipeline: int, count: int, num_units: int) -> Iterator[Candidate]:
    """Yield the candidates with a given number of ranks and of microbatches.

    Args:
        problem: Model, cluster, batch and options.
        pipeline: Number of ranks of one pipeline.
        count: Number of microbatches of a batch.
        num_units: Number of the model's units (undivided modules), the largest number of stages.
    """
    preference, stages = 0, range(1, num_units + 1)
    if not problem.auto_partition:
        stages = range(problem.num_marked_stages, problem.num_marked_stages + 1)
    for name in _names(problem, pipeline):
        for virtual in _virtual(problem, SCHEDULES[name]):
            if pipeline * virtual not in stages:
                continue
            for active in _active(problem, SCHEDULES[name], pipeline, count):
                preference += 1
                yield Candidate(
                    pipeline=pipeline,
                    data=problem.cluster.size // pipeline,
                    schedule=name,
                    num_microbatches=count,
                    virtual_stages=virtual,
                    active_microbatches=active,
                    preference=preference,
                )


def _names(problem: Problem, pipeline: int) -> tuple[str, ...]:
    """Return the names of the schedules to try for pipelines of `pipeline` ranks."""
    if problem.schedule != AUTO:
        return (problem.schedule,)
    if problem.active_microbatches:
        return tuple(name for name, kind in SCHEDULES.items() if kind.takes_active_microbatches)
    if pipeline == 1 and (problem.virtual_stages or 1) == 1:
        return _AUTO[:1]  # with a single stage, all schedules do the same
    return _AUTO


def _virtual(problem: Problem, kind: ScheduleKind) -> tuple[int, ...]:
    """Return the numbers of stages on a rank to try with a schedule of this kind."""
    least, most = kind.least_virtual_stages, kind.most_virtual_stages
    wanted = (problem.virtual_stages,) if problem.virtual_stages else (least, *_VIRTUAL)
    if problem.schedule == AUTO and not problem.virtual_stages and least == 1:
        wanted = (1,)  # other schedules are for several stages on each rank
    return tuple(sorted({each for each in wanted if least <= each <= (most or each)}))


def _active(
    problem: Problem, kind: ScheduleKind, pipeline: int, count: int
) -> tuple[int | None, ...]:
    """Return the values to try for the largest number of microbatches in flight.

    Args:
        problem: Model, cluster, batch and options.
        kind: Kind of schedule.
        pipeline: Number of ranks of one pipeline.
        count: Number of microbatches of a batch.

    Returns:
        Values to try; (None,) if this kind of schedule does not have the option.
    """
    if not kind.takes_active_microbatches:
        return (None,)
    if problem.active_microbatches:
        return (problem.active_microbatches,)
    return tuple(sorted({min(count, pipeline + extra) for extra in _EXTRA_ACTIVE}))
