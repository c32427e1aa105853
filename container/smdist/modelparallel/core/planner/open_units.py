# SPDX-License-Identifier: Apache-2.0
"""Choice of large modules to split into the modules inside them, for a faster pipeline.

A unit is a module that is not split between stages. One large unit can slow down a whole pipeline.
So such units are split one after another, and the best plan is searched again. The split is kept if
the plan becomes at least 2 % faster.
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
_WORTHWHILE: Final = 1.02  # required speedup, 2 %, of a plan with divided units
_MOST_DEGREES: Final = 4  # largest number of pipeline degrees for which units are divided
_MOST_OPENED: Final = 8  # largest number of divided units for one degree
_MOST_CLOSED: Final = 2  # number of units that cannot be divided after which the search stops


@dataclass(frozen=True, slots=True, kw_only=True)
class BestCandidate:
    """Best of the candidates that were tried for a model with given undivided modules.

    Attributes:
        problem: Model, cluster, batch and options.
        samples: Graphs and costs of the model with these undivided modules.
        search: Search that evaluated the candidates.
        tried: Candidates that were tried.
        best: Fastest candidate; None if none can run.
    """

    problem: Problem
    samples: Samples
    search: Search
    tried: tuple[Candidate, ...]
    best: SimulatedCandidate | None

    @property
    def seconds(self) -> float:
        """Seconds per sample of the fastest candidate; infinite if none can run."""
        return self.best.seconds_per_sample if self.best else float("inf")


def search_best(
    problem: Problem, samples: Samples, is_wanted: Callable[[Candidate], bool] | None = None
) -> BestCandidate:
    """Search for the fastest candidate, and return it with the results of the search.

    A candidate is a combination of parallel degrees, schedule and number of microbatches.

    Args:
        problem: Model, cluster, batch and options.
        samples: Graphs and costs of the model.
        is_wanted: Function that returns True for candidates to try. None tries all candidates.
    """
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
    """Return graphs and costs of the model after more modules are divided.

    Args:
        found: Result before the division.
        names: Modules to divide into the modules inside them.
        choices: Numbers of microbatches for which graphs and costs may be needed.

    Returns:
        Graphs and costs; None if the modules inside cannot be recorded, or if the number of
        undivided modules does not grow.
    """
    finer = Samples(found.problem, found.samples.opened | names, choices)
    try:
        units = len(finer.smallest.graph.units)
    except OptionError:  # the module's contents cannot be captured
        return None
    return finer if units > len(found.samples.view(max(choices)).graph.units) else None


def open_bottlenecks(found: BestCandidate) -> BestCandidate:
    """Split modules that slow down the pipeline, if the plan becomes at least 2 % faster.

    Args:
        found: Best candidate before the split.

    Returns:
        Best candidate after the split; `found` if no split helps.
    """
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
    return search_best(found.problem, samples)


def _starts(found: BestCandidate) -> list[BestCandidate]:
    """Return up to 4 candidates that may become the fastest when modules are split.

    No two of them have the same number of ranks in a pipeline. The fastest candidate is first.
    """
    starts = []
    for degree in degree_choices(found.problem):
        if degree > 1 and _promising_microbatches(found, degree, found.seconds):
            tried = tuple(each for each in found.tried if each.pipeline == degree)
            starts.append(replace(found, tried=tried, best=found.search.best(tried)))
    possible = (start for start in starts if start.best is not None)
    return sorted(possible, key=lambda start: start.seconds)[:_MOST_DEGREES]


def _promising_microbatches(found: BestCandidate, degree: int, seconds: float) -> tuple[int, ...]:
    """Return the numbers of microbatches that may give a faster plan when modules are split.

    Args:
        found: Best candidate so far.
        degree: Number of ranks of one pipeline.
        seconds: Seconds per sample of the best plan so far.
    """
    wanted = (
        each.num_microbatches
        for each in candidates(found.problem, ANY_NUMBER)
        if each.pipeline == degree and _seconds_if_even(found, each) * _WORTHWHILE < seconds
    )
    return tuple(sorted(set(wanted)))


def _seconds_if_even(found: BestCandidate, candidate: Candidate) -> float:
    """Return a lower bound on a candidate's seconds per sample if the model is divided evenly.

    Args:
        found: Result of a search, with the model's costs and the batch size.
        candidate: Degrees, schedule and number of microbatches.
    """
    total, _ = found.samples.seconds(candidate.num_microbatches)
    count, ranks = candidate.num_microbatches, candidate.pipeline
    least = total * max(count / ranks, 1)
    if candidate.virtual_stages == 1 and not candidate.kind.splits_backward:
        least = total / (1 - (1 - 1 / count) ** ranks)
    return least / (found.problem.batch_size * candidate.data)


def _open(start: BestCandidate, seconds: float) -> BestCandidate:
    """Split one module after another, while each split makes the pipeline at least 2 % faster.

    Args:
        start: Best candidate before the splits, for one number of ranks in a pipeline.
        seconds: Seconds per sample of the best plan so far, which the result should beat.

    Returns:
        Best candidate after the splits; `start` if no split helps.
    """
    assert start.best is not None
    degree = start.best.candidate.pipeline
    choices = _promising_microbatches(start, degree, seconds)
    now, closed, opened = start, set[str](), 0
    while choices and opened < _MOST_OPENED and len(closed) < _MOST_CLOSED:
        name = _next_unit(now, closed)
        if name is None:
            break
        samples = try_open(now, frozenset([name]), choices)
        if samples is None:
            closed.add(name)
            continue
        finer = search_best(start.problem, samples, partial(_is_one_of, degree, choices))
        if finer.seconds * _WORTHWHILE > now.seconds:
            break
        now, opened = finer, opened + 1
    return now


def _is_one_of(degree: int, choices: tuple[int, ...], candidate: Candidate) -> bool:
    return candidate.pipeline == degree and candidate.num_microbatches in choices


def _next_unit(found: BestCandidate, closed: set[str]) -> str | None:
    assert found.best is not None
    view = found.samples.view(found.best.candidate.num_microbatches)
    best = found.best.pipeline.split.partition
    return next_to_open(view.graph, view.costs, best, closed=closed)
