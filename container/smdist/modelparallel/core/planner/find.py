# SPDX-License-Identifier: Apache-2.0
"""From a problem to a plan: capture, search, open what caps the gain, and write down why."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from sagemaker_dist.errors import OptionError
from smdist.modelparallel.core.partition import next_to_open
from smdist.modelparallel.core.placement import placed_units
from smdist.modelparallel.core.plan import Plan
from smdist.modelparallel.core.planner.candidates import Candidate, candidates, microbatch_choices
from smdist.modelparallel.core.planner.evaluate import Trial
from smdist.modelparallel.core.planner.impossible import impossible
from smdist.modelparallel.core.planner.problem import Problem
from smdist.modelparallel.core.planner.rejected import rejected
from smdist.modelparallel.core.planner.samples import Samples
from smdist.modelparallel.core.planner.search import Search
from smdist.modelparallel.core.planner.write import write

_WORTHWHILE: Final = 1.02  # a finer model has to be faster by 2 %
_MOST_OPENED: Final = 8
_MOST_IN_VAIN: Final = 2


def find_plan(problem: Problem) -> Plan:
    """The plan with the most samples per second that fits in memory.

    Raises:
        PlanError: No candidate is possible; with the nearest misses and what stands in their way.
    """
    samples = Samples(problem, frozenset(), microbatch_choices(problem))
    search = Search(problem, samples)
    tried = _candidates(problem, samples)
    best = _exact_best(search, samples, tried)
    if best is None:
        raise impossible(problem, samples, search, tried)
    samples, search, tried, best = _open(problem, samples, search, tried, best)
    return write(problem, samples, best, rejected(search, tried, best))


def _candidates(problem: Problem, samples: Samples) -> tuple[Candidate, ...]:
    count = max(microbatch_choices(problem))
    return tuple(candidates(problem, len(placed_units(samples.exact(count).graph))))


def _exact_best(search: Search, samples: Samples, tried: tuple[Candidate, ...]) -> Trial | None:
    """The best one, captured at its own size of microbatches."""
    best = search.best(tried)
    while best is not None and not search.evaluator.is_exact(best.candidate):
        samples.exact(best.candidate.num_microbatches)
        search.forget(best.candidate.num_microbatches)
        best = search.best(tried)
    return best


_State = tuple[Samples, Search, tuple[Candidate, ...], Trial]


def _open(
    problem: Problem, samples: Samples, search: Search, tried: tuple[Candidate, ...], best: Trial
) -> _State:
    """Go into the units that cap the gain, as long as that brings 2 %."""
    state, closed = (samples, search, tried, best), set[str]()
    while len(state[0].opened) < _MOST_OPENED and len(closed) < _MOST_IN_VAIN:
        name = _next(state, closed)
        if name is None:
            break
        finer = _opened(problem, state, name)
        if finer is None or finer[3].seconds_per_sample * _WORTHWHILE > state[3].seconds_per_sample:
            closed.add(name)
        else:
            state = finer
    return state


def _next(state: _State, closed: set[str]) -> str | None:
    samples, _, _, best = state
    view = samples.exact(best.candidate.num_microbatches)
    return next_to_open(view.graph, view.costs, best.pipeline.split.partition, closed=closed)


def _opened(problem: Problem, state: _State, name: str) -> _State | None:
    samples, _, _, best = state
    count = best.candidate.num_microbatches
    finer = Samples(problem, samples.opened | {name}, (count,))
    try:
        view = finer.exact(count)
    except OptionError:  # what is in it cannot be captured
        return None
    if len(view.graph.units) <= len(samples.exact(count).graph.units):
        return None
    fixed = replace(problem, microbatches=count)
    search, tried = Search(fixed, finer), _candidates(fixed, finer)
    found = search.best(tried)
    return None if found is None else (finer, search, tried, found)
