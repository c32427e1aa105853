# SPDX-License-Identifier: Apache-2.0
"""Every combination of degrees, schedule and number of microbatches that is worth a look."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from smdist.modelparallel.core.plan.check import divisors
from smdist.modelparallel.core.plan.text import number, way
from smdist.modelparallel.core.planner.marks import num_stages_by_hand
from smdist.modelparallel.core.planner.problem import AUTO, Problem
from smdist.modelparallel.core.schedule import SCHEDULES, Kind

# What "auto" tries, in the order in which equals are preferred: least memory first. It is not all:
# "looped_bfs" keeps all microbatches as "simple" does, and "dualpipe_v" as many as "zero_bubble_v",
# so these two run only where they are asked for by name.
_AUTO: Final = (
    "1f1b",
    "zero_bubble",
    "interleaved",
    "interleaved_1f1b",
    "zero_bubble_v",
    "simple",
)
LEAN: Final = ("1f1b", "zero_bubble")  # those that hold the least
_EXTRA_ACTIVE: Final = range(5)  # beyond the ranks: more hides more latency, and holds more
_VIRTUAL: Final = (2, 4)
_MOST_PER_RANK: Final = 16  # microbatches: beyond it the bubble is below 6 % and overheads grow


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """One way to run, before anything is known about it.

    Attributes:
        pipeline: Ranks of one pipeline.
        data: Pipelines beside each other.
        preference: Among equals, the lowest is taken.
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
        """Stages of the pipeline."""
        return self.pipeline * self.virtual_stages

    @property
    def kind(self) -> Kind:
        """What there is to know about its schedule."""
        return SCHEDULES[self.schedule]

    def __str__(self) -> str:
        pipelines, ranks = number(self.data, "pipeline"), number(self.pipeline, "rank")
        how = way(self.schedule, self.virtual_stages, self.active_microbatches)
        return f"{pipelines} of {ranks}, {how}, {number(self.num_microbatches, 'microbatch')}"


def microbatch_choices(problem: Problem) -> tuple[int, ...]:
    """The numbers of microbatches that may be tried."""
    if problem.microbatches:
        return (problem.microbatches,)
    most = _MOST_PER_RANK * (problem.pipeline_parallel_degree or problem.cluster.size)
    wanted = (each for each in divisors(problem.batch_size) if each <= most)
    return tuple(each for each in wanted if each not in problem.dropped)


def degree_choices(problem: Problem) -> tuple[int, ...]:
    """The pipeline degrees that may be tried, however many units there are.

    Who asks for several stages a rank, or limits what is under way, wants a pipeline: of two ranks
    or more, where there are so many.
    """
    if problem.pipeline_parallel_degree:
        return (problem.pipeline_parallel_degree,)
    if problem.data_parallel_degree:
        return (problem.cluster.size // problem.data_parallel_degree,)
    degrees = divisors(problem.cluster.size)
    wants_pipeline = (problem.virtual_stages or 1) > 1 or problem.active_microbatches
    return degrees[1:] or degrees if wants_pipeline else degrees


def candidates(problem: Problem, num_units: int) -> Iterator[Candidate]:
    """All that may be tried with so many units."""
    for pipeline in degree_choices(problem):
        for count in microbatch_choices(problem):
            yield from _of(problem, pipeline, count, num_units)


def _of(problem: Problem, pipeline: int, count: int, num_units: int) -> Iterator[Candidate]:
    preference, stages = 0, range(1, num_units + 1)
    if not problem.auto_partition:
        stages = range(num_stages_by_hand(problem), num_stages_by_hand(problem) + 1)
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
    if problem.schedule != AUTO:
        return (problem.schedule,)
    if problem.active_microbatches:
        return tuple(name for name, kind in SCHEDULES.items() if kind.takes_active_microbatches)
    if pipeline == 1 and (problem.virtual_stages or 1) == 1:
        return _AUTO[:1]  # without neighbours all of them come to the same
    return _AUTO


def _virtual(problem: Problem, kind: Kind) -> tuple[int, ...]:
    least, most = kind.least_virtual_stages, kind.most_virtual_stages
    wanted = (problem.virtual_stages,) if problem.virtual_stages else (least, *_VIRTUAL)
    if problem.schedule == AUTO and not problem.virtual_stages and least == 1:
        wanted = (1,)  # rounds of stages have schedules of their own
    return tuple(sorted({each for each in wanted if least <= each <= (most or each)}))


def _active(problem: Problem, kind: Kind, pipeline: int, count: int) -> tuple[int | None, ...]:
    if not kind.takes_active_microbatches:
        return (None,)
    if problem.active_microbatches:
        return (problem.active_microbatches,)
    return tuple(sorted({min(count, pipeline + extra) for extra in _EXTRA_ACTIVE}))
