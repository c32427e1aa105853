# SPDX-License-Identifier: Apache-2.0
"""From a problem to a plan: capture, search, open what caps the gain, and write down why."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final

from sagemaker_dist.errors import OptionError
from smdist.modelparallel.core.partition import next_to_open
from smdist.modelparallel.core.placement import placed_units
from smdist.modelparallel.core.plan import Plan
from smdist.modelparallel.core.planner.candidates import (
    LEAN,
    Candidate,
    candidates,
    microbatch_choices,
)
from smdist.modelparallel.core.planner.evaluate import Trial
from smdist.modelparallel.core.planner.impossible import impossible
from smdist.modelparallel.core.planner.problem import AUTO, Problem
from smdist.modelparallel.core.planner.rejected import rejected
from smdist.modelparallel.core.planner.samples import Samples, View
from smdist.modelparallel.core.planner.search import Search
from smdist.modelparallel.core.planner.write import write

_WORTHWHILE: Final = 1.02  # a finer model has to be faster by 2 %
_MOST_OPENED: Final = 8
_MOST_CLOSED: Final = 2  # units that cannot be opened
_ANY_NUMBER: Final = 1 << 30


@dataclass(frozen=True, slots=True, kw_only=True)
class _Found:
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


def find_plan(problem: Problem) -> Plan:
    """The plan with the most samples per second that fits in memory.

    Raises:
        PlanError: No candidate is possible; with the nearest misses and what stands in their way.
    """
    found = _look(problem, Samples(problem, problem.opened, microbatch_choices(problem)))
    found = _open_until_possible(found) if found.best is None else _open_what_caps(found)
    assert found.best is not None
    others = rejected(found.search, found.tried, found.best)
    return write(problem, found.samples, found.best, others)


def _look(
    problem: Problem, samples: Samples, is_wanted: Callable[[Candidate], bool] | None = None
) -> _Found:
    """Search at one granularity, until the best one was captured at its own size."""
    search = Search(problem, samples)
    tried = tuple(candidates(problem, len(placed_units(samples.smallest.graph))))
    tried = tuple(filter(is_wanted, tried))
    best = search.best(tried)
    while best is not None and not search.evaluator.is_exact(best.candidate):
        samples.exact(best.candidate.num_microbatches)
        search.forget(best.candidate.num_microbatches)
        best = search.best(tried)
    return _Found(problem=problem, samples=samples, search=search, tried=tried, best=best)


def _open_until_possible(found: _Found) -> _Found:
    """Go into all units of the class that takes the most memory, where nothing fits otherwise.

    There are many units then, and memory is short: schedules that hold more are not tried.

    Raises:
        PlanError: That does not help.
    """
    if _would_finer_help(found):
        names = _largest_class(found.problem, found.samples.smallest)
        samples = _try_open(found, names, microbatch_choices(found.problem))
        asked = found.problem.virtual_stages or found.problem.active_microbatches
        is_open = found.problem.schedule == AUTO and not asked
        if samples is not None:
            found = _look(found.problem, samples, _is_lean if is_open else None)
    if found.best is None:
        raise impossible(found.problem, found.samples, found.search, found.tried)
    return found


def _would_finer_help(found: _Found) -> bool:
    if not found.problem.auto_partition:
        return False
    wanted = list(candidates(found.problem, _ANY_NUMBER))
    lean = list(filter(_is_lean, wanted)) or wanted
    return any(map(found.search.evaluator.may_fit_finer, lean))


def _is_lean(candidate: Candidate) -> bool:
    return candidate.schedule in LEAN


def _largest_class(problem: Problem, view: View) -> frozenset[str]:
    """The modules of the class whose units take the most memory together."""
    total: dict[str, int] = {}
    for unit in placed_units(view.graph):
        state = sum(problem.state.of(view.graph.parameter[name]) for name in unit.parameters)
        size = state + view.costs.of(unit.name).saved_bytes
        total[unit.type] = total.get(unit.type, 0) + size
    largest = max(total, key=lambda name: total[name], default="")
    return frozenset(unit.module for unit in placed_units(view.graph) if unit.type == largest)


def _try_open(found: _Found, names: frozenset[str], choices: tuple[int, ...]) -> Samples | None:
    """The model with these units opened; None where that is not possible or changes nothing."""
    finer = Samples(found.problem, found.samples.opened | names, choices)
    try:
        units = len(finer.smallest.graph.units)
    except OptionError:  # what is in them cannot be captured
        return None
    return finer if units > len(found.samples.exact(max(choices)).graph.units) else None


def _open_what_caps(found: _Found) -> _Found:
    """Go into the units that cap the gain, as long as that brings 2 %.

    The schedule and the numbers stay as they are meanwhile, and are looked at anew in the end.
    """
    assert found.best is not None
    chosen = found.best.candidate
    fixed = replace(found.problem, microbatches=chosen.num_microbatches)
    now, closed, opened = found, set[str](), 0
    while opened < _MOST_OPENED and len(closed) < _MOST_CLOSED:
        name = _next(now, closed)
        if name is None:
            break
        samples = _try_open(now, frozenset([name]), (chosen.num_microbatches,))
        if samples is None:
            closed.add(name)
            continue
        finer = _look(fixed, samples, chosen.is_like)
        if finer.seconds * _WORTHWHILE > now.seconds:
            break
        now, opened = finer, opened + 1
    return _look(fixed, now.samples) if opened else found


def _next(found: _Found, closed: set[str]) -> str | None:
    assert found.best is not None
    view = found.samples.exact(found.best.candidate.num_microbatches)
    best = found.best.pipeline.split.partition
    return next_to_open(view.graph, view.costs, best, closed=closed)
