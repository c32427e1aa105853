# SPDX-License-Identifier: Apache-2.0
"""Choice of units to open for a faster pipeline, and how far to open them.

The ranking with whole units decides little: a pipeline that one large unit slows down may become
the fastest once that unit is split, perhaps with another number of microbatches. So each pipeline
degree is tried whose even split would be faster than the best plan so far. This rule keeps the work
small: if one rank holds the model and sums gradients quickly, no pipeline qualifies.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

from sagemaker_dist.errors import OptionError
from smdist.modelparallel.core.partition import next_to_open
from smdist.modelparallel.core.placement import placed_units
from smdist.modelparallel.core.planner.candidate_search import Search
from smdist.modelparallel.core.planner.candidates import (
    Candidate,
    candidates,
    degree_choices,
    microbatch_choices,
)
from smdist.modelparallel.core.planner.cost_samples import Samples
from smdist.modelparallel.core.planner.evaluate import SimulatedCandidate
from smdist.modelparallel.core.planner.problem import Problem

ANY_NUMBER: Final = 1 << 30
_WORTHWHILE: Final = 1.02  # required speedup: a finer model has to be 2 % faster
_MOST_DEGREES: Final = 4  # pipeline degrees that are tried with finer units
_MOST_OPENED: Final = 8
_MOST_CLOSED: Final = 2  # units that could not be opened, before the search stops


@dataclass(frozen=True, slots=True, kw_only=True)
class BestCandidate:
    """Best of the candidates that were tried with certain units opened."""

    problem: Problem
    samples: Samples
    search: Search
    tried: tuple[Candidate, ...]
    best: SimulatedCandidate | None

    @property
    def seconds(self) -> float:
        """Seconds per sample; infinite if no candidate is possible."""
        return self.best.seconds_per_sample if self.best else float("inf")


def look(
    problem: Problem, samples: Samples, is_wanted: Callable[[Candidate], bool] | None = None
) -> BestCandidate:
    """Search with certain units opened, until the best candidate was captured at its own size."""
    search = Search(problem, samples)
    tried = tuple(candidates(problem, len(placed_units(samples.smallest.graph))))
    tried = tuple(filter(is_wanted, tried))
    best = search.best(tried)
    while best is not None and not search.evaluator.is_exact(best.candidate):
        samples.exact(best.candidate.num_microbatches)
        search.forget(best.candidate.num_microbatches)
        best = search.best(tried)
    return BestCandidate(problem=problem, samples=samples, search=search, tried=tried, best=best)


def try_open(
    found: BestCandidate, names: frozenset[str], choices: tuple[int, ...]
) -> Samples | None:
    """Return the model with these units opened; None if impossible or if nothing changes."""
    finer = Samples(found.problem, found.samples.opened | names, choices)
    try:
        units = len(finer.smallest.graph.units)
    except OptionError:  # the module's contents cannot be captured
        return None
    return finer if units > len(found.samples.view(max(choices)).graph.units) else None


def open_what_caps(found: BestCandidate) -> BestCandidate:
    """Open the units that limit the gain of a pipeline, as long as that gains 2 %."""
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


def _starts(found: BestCandidate) -> list[BestCandidate]:
    """Return the best candidate of each promising pipeline degree, fastest first."""
    starts = []
    for degree in degree_choices(found.problem):
        if degree > 1 and _promising(found, degree, found.seconds):
            tried = tuple(each for each in found.tried if each.pipeline == degree)
            starts.append(replace(found, tried=tried, best=found.search.best(tried)))
    possible = (start for start in starts if start.best is not None)
    return sorted(possible, key=lambda start: start.seconds)[:_MOST_DEGREES]


def _promising(found: BestCandidate, degree: int, seconds: float) -> tuple[int, ...]:
    """Return the numbers of microbatches whose even split is 2 % faster than `seconds` a sample."""
    wanted = (
        each.num_microbatches
        for each in candidates(found.problem, ANY_NUMBER)
        if each.pipeline == degree and _split_evenly(found, each) * _WORTHWHILE < seconds
    )
    return tuple(sorted(set(wanted)))


def _split_evenly(found: BestCandidate, candidate: Candidate) -> float:
    """Return a lower bound on the seconds per sample, for arbitrarily fine units.

    A microbatch goes through the whole model, and each rank does an even share of the work for all
    microbatches.
    """
    total, _ = found.samples.seconds(candidate.num_microbatches)
    count, ranks = candidate.num_microbatches, candidate.pipeline
    least = total * max(count / ranks, 1)
    if candidate.virtual_stages == 1 and not candidate.kind.splits_backward:
        least = total / (1 - (1 - 1 / count) ** ranks)
    return least / (found.problem.batch_size * candidate.data)


def _open(start: BestCandidate, seconds: float) -> BestCandidate:
    """Open one unit after another, and try every schedule and number of microbatches each time.

    Args:
        start: Best pipeline of one degree, with the current units.
        seconds: Seconds per sample of the best plan so far.
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


def _next(found: BestCandidate, closed: set[str]) -> str | None:
    assert found.best is not None
    view = found.samples.view(found.best.candidate.num_microbatches)
    best = found.best.pipeline.split.partition
    return next_to_open(view.graph, view.costs, best, closed=closed)
