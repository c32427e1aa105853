# SPDX-License-Identifier: Apache-2.0
"""Search for the fastest plan that fits in memory."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

from smdist.modelparallel.core.placement import placed_units
from smdist.modelparallel.core.plan import Plan
from smdist.modelparallel.core.planner.candidates import (
    LEAN,
    Candidate,
    candidates,
    microbatch_choices,
)
from smdist.modelparallel.core.planner.cost_samples import Samples, View
from smdist.modelparallel.core.planner.infeasible import impossible
from smdist.modelparallel.core.planner.open_units import (
    ANY_NUMBER,
    BestCandidate,
    open_bottlenecks,
    search_best,
    try_open,
)
from smdist.modelparallel.core.planner.problem import AUTO, Problem
from smdist.modelparallel.core.planner.rejected import rejected
from smdist.modelparallel.core.planner.write_plan import write


def find_plan(problem: Problem) -> Plan:
    """Return the plan with the most samples per second that fits in memory.

    Raises:
        PlanError: No plan is possible. The error names the reasons, and for a lack of memory the
            plans that need the least memory.
    """
    problem = replace(problem, at=cache(problem.at))  # a capture takes long, so none is repeated
    found = search_best(problem, Samples(problem, problem.opened, microbatch_choices(problem)))
    found = _open_until_possible(found) if found.best is None else open_bottlenecks(found)
    assert found.best is not None
    others = rejected(found.search, found.tried, found.best)
    return write(problem, found.samples, found.best, others)


def _open_until_possible(found: BestCandidate) -> BestCandidate:
    """Divide modules if no plan fits in memory otherwise, and return the best candidate.

    All modules of the class that takes the most memory are divided. If the planner chooses the
    schedule, only schedules that need the least memory are tried with the divided modules.

    Args:
        found: Result of the search before the division.

    Raises:
        PlanError: No plan fits with divided modules either.
    """
    if _may_smaller_units_help(found):
        names = _largest_class(found.problem, found.samples.smallest)
        samples = try_open(found, names, microbatch_choices(found.problem))
        is_requested = found.problem.virtual_stages or found.problem.active_microbatches
        is_open = found.problem.schedule == AUTO and not is_requested
        if samples is not None:
            found = search_best(found.problem, samples, _is_lean if is_open else None)
    if found.best is None:
        raise impossible(found.problem, found.samples, found.search, found.tried)
    return found


def _may_smaller_units_help(found: BestCandidate) -> bool:
    """Return True if a candidate may fit in memory when modules are divided.

    Args:
        found: Result of a search in which no candidate fits.
    """
    if not found.problem.auto_partition:
        return False
    wanted = list(candidates(found.problem, ANY_NUMBER))
    lean = list(filter(_is_lean, wanted)) or wanted
    return any(map(found.search.evaluator.may_fit_finer, lean))


def _is_lean(candidate: Candidate) -> bool:
    return candidate.schedule in LEAN


def _largest_class(problem: Problem, view: View) -> frozenset[str]:
    """Return the names of all modules of the class that needs the most memory in total."""
    total: dict[str, int] = {}
    for unit in placed_units(view.graph):
        state = sum(problem.state.of(view.graph.parameter[name]) for name in unit.parameters)
        size = state + view.costs.of(unit.name).saved_bytes
        total[unit.type] = total.get(unit.type, 0) + size
    largest = max(total, key=lambda name: total[name], default="")
    return frozenset(unit.module for unit in placed_units(view.graph) if unit.type == largest)
