# SPDX-License-Identifier: Apache-2.0
"""Which units are opened to make a pipeline faster, and how far.

The fastest of the whole units decides little: a pipeline that is slow for one large unit alone may
be the fastest once that unit is in two, and another number of microbatches may suit it. So every
length of pipeline gets its chance whose even split would be faster than what there is. That rule
keeps the work small: where one rank holds the model and sums gradients quickly, no pipeline passes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

from sagemaker_dist.errors import OptionError
from smdist.modelparallel.core.partition import next_to_open
from smdist.modelparallel.core.placement import placed_units
from smdist.modelparallel.core.planner.candidates import (
    Candidate,
    candidates,
    degree_choices,
    microbatch_choices,
)
from smdist.modelparallel.core.planner.evaluate import Trial
from smdist.modelparallel.core.planner.problem import Problem
from smdist.modelparallel.core.planner.samples import Samples
from smdist.modelparallel.core.planner.search import Search

ANY_NUMBER: Final = 1 << 30
_WORTHWHILE: Final = 1.02  # a finer model has to be faster by 2 %
_MOST_DEGREES: Final = 4  # lengths of pipelines that are tried with finer units
_MOST_OPENED: Final = 8
_MOST_CLOSED: Final = 2  # units that cannot be opened


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """The best of the candidates that were tried at one granularity."""

    problem: Problem
    samples: Samples
    search: Search
    tried: tuple[Candidate, ...]
    best: Trial | None

    @property
    def seconds(self) -> float:
        """Per sample; infinite where nothing is possible."""
        return self.best.seconds_per_sample if self.best else float("inf")


def look(
    problem: Problem, samples: Samples, is_wanted: Callable[[Candidate], bool] | None = None
) -> Found:
    """Search at one granularity, until the best one was captured at its own size."""
    search = Search(problem, samples)
    tried = tuple(candidates(problem, len(placed_units(samples.smallest.graph))))
    tried = tuple(filter(is_wanted, tried))
    best = search.best(tried)
    while best is not None and not search.evaluator.is_exact(best.candidate):
        samples.exact(best.candidate.num_microbatches)
        search.forget(best.candidate.num_microbatches)
        best = search.best(tried)
    return Found(problem=problem, samples=samples, search=search, tried=tried, best=best)


def try_open(found: Found, names: frozenset[str], choices: tuple[int, ...]) -> Samples | None:
    """The model with these units opened; None where that is not possible or changes nothing."""
    finer = Samples(found.problem, found.samples.opened | names, choices)
    try:
        units = len(finer.smallest.graph.units)
    except OptionError:  # what is in them cannot be captured
        return None
    return finer if units > len(found.samples.view(max(choices)).graph.units) else None


def open_what_caps(found: Found) -> Found:
    """Go into the units that cap the gain of a pipeline, as long as that brings 2 %."""
    if not found.problem.auto_partition:
        return found
    best = found
    for start in _starts(found):
        finer = _open(start, best.seconds)
        if finer.seconds * _WORTHWHILE <= best.seconds:
            best = finer
    if best is found:
        return found
    samples = Samples(found.problem, best.samples.opened, microbatch_choices(found.problem))
    return look(found.problem, samples)


def _starts(found: Found) -> list[Found]:
    """The best of each length of pipeline that is worth it, fastest first."""
    starts = []
    for degree in degree_choices(found.problem):
        if degree > 1 and _promising(found, degree, found.seconds):
            tried = tuple(each for each in found.tried if each.pipeline == degree)
            starts.append(replace(found, tried=tried, best=found.search.best(tried)))
    possible = (start for start in starts if start.best is not None)
    return sorted(possible, key=lambda start: start.seconds)[:_MOST_DEGREES]


def _promising(found: Found, degree: int, seconds: float) -> tuple[int, ...]:
    """The numbers of microbatches with which an even split takes 2 % less than so long a sample."""
    wanted = (
        each.num_microbatches
        for each in candidates(found.problem, ANY_NUMBER)
        if each.pipeline == degree and _split_evenly(found, each) * _WORTHWHILE < seconds
    )
    return tuple(sorted(set(wanted)))


def _split_evenly(found: Found, candidate: Candidate) -> float:
    """Seconds a sample that nothing can beat, however fine the units are.

    A microbatch goes through the whole model, and a rank does its share of all of them.
    """
    total, _ = found.samples.seconds(candidate.num_microbatches)
    count, ranks = candidate.num_microbatches, candidate.pipeline
    least = total * max(count / ranks, 1)
    if candidate.virtual_stages == 1 and not candidate.kind.splits_backward:
        least = total / (1 - (1 - 1 / count) ** ranks)
    return least / (found.problem.batch_size * candidate.data)


def _open(start: Found, seconds: float) -> Found:
    """Open one unit after the other, with every schedule and number of microbatches in the race.

    Args:
        start: The best pipeline of one length, with units as they are.
        seconds: A sample takes so long already.
    """
    assert start.best is not None
    degree = start.best.candidate.pipeline
    choices = _promising(start, degree, seconds)
    now, closed, opened = start, set[str](), 0
    while choices and opened < _MOST_OPENED and len(closed) < _MOST_CLOSED:
        name = _next(now, closed)
        if name is None:
            break
        samples = try_open(now, frozenset([name]), choices)
        if samples is None:
            closed.add(name)
            continue
        finer = look(start.problem, samples, partial(_is_one_of, degree, choices))
        if finer.seconds * _WORTHWHILE > now.seconds:
            break
        now, opened = finer, opened + 1
    return now


def _is_one_of(degree: int, choices: tuple[int, ...], candidate: Candidate) -> bool:
    return candidate.pipeline == degree and candidate.num_microbatches in choices


def _next(found: Found, closed: set[str]) -> str | None:
    assert found.best is not None
    view = found.samples.view(found.best.candidate.num_microbatches)
    best = found.best.pipeline.split.partition
    return next_to_open(view.graph, view.costs, best, closed=closed)
