# SPDX-License-Identifier: Apache-2.0
"""Stages that people chose themselves, as SageMaker's library lets them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from sagemaker_dist.errors import OptionError, closest
from smdist.modelparallel.core.errors import PlanError, raise_faults
from smdist.modelparallel.core.graph import Graph
from smdist.modelparallel.core.placement import placed_units
from smdist.modelparallel.core.planner.problem import Problem


def num_stages_by_hand(problem: Problem) -> int:
    """How many stages the marks ask for."""
    return max([problem.default_partition or 0, *problem.marks.values()]) + 1


def stages_by_hand(problem: Problem, graph: Graph, num_stages: int) -> Mapping[str, int]:
    """The stage of each unit: its own mark, that of a module around it, or the default.

    Raises:
        PlanError: A mark fits no unit or names no stage; a unit has neither mark nor default.
    """
    raise_faults(_faults(problem, graph, num_stages))
    found = {unit.name: _mark(problem, unit.module) for unit in placed_units(graph)}
    return {name: stage for name, stage in found.items() if stage is not None}


def _mark(problem: Problem, module: str) -> int | None:
    """Of the innermost module that has one."""
    while module and module not in problem.marks:
        module = module.rpartition(".")[0]
    return problem.marks.get(module, problem.default_partition)


def _faults(problem: Problem, graph: Graph, num_stages: int) -> Iterator[OptionError]:
    modules = [unit.module for unit in placed_units(graph)]
    around = {"", *modules, *(outer for each in modules for outer in _outer(each))}
    for module, stage in problem.marks.items():
        if module not in around:
            what = f"the mark of {module!r} for stage {stage}"
            yield PlanError(what, f"{graph.model} has no such unit", closest(module, around))
        if not 0 <= stage < num_stages:
            what, why = f"{module!r} is marked for stage {stage}", f"there are {num_stages} stages"
            yield PlanError(what, why, f"Mark it for one of 0 to {num_stages - 1}")
    for module in modules:
        if _mark(problem, module) is None:
            what = f"the unit {module!r} has no mark and there is no default_partition"
            why = "auto_partition is False, so nobody else places it"
            yield PlanError(what, why, "Mark it, pass default_partition, or let the planner do it")


def _outer(module: str) -> Iterator[str]:
    while module:
        yield module
        module = module.rpartition(".")[0]
