# SPDX-License-Identifier: Apache-2.0
"""Checks of a plan that was edited by hand, or made for another model."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from math import isqrt

from sagemaker_dist.errors import OptionError, closest
from smdist.modelparallel.core.graph import Graph
from smdist.modelparallel.core.placement import Placement, place, placed_units
from smdist.modelparallel.core.plan.plan_data import PlanData
from smdist.modelparallel.core.plan_errors import PlanError, raise_faults
from smdist.modelparallel.core.quantities import shown

_NUMBERS = (
    "pipeline_parallel_degree",
    "data_parallel_degree",
    "batch_size",
    "num_microbatches",
    "virtual_stages",
)
_MOST = 10**9  # largest valid count of any kind
_MOST_PASSES = 10**7  # largest number of passes of microbatches through stages
_FEW = 3  # number of units named as examples
_SHOWN = 6  # number of faults of one kind that are reported one by one


def number_faults(plan: PlanData) -> Iterator[OptionError]:
    """Return faults of numbers that are invalid for every model."""
    for name in _NUMBERS:
        number = getattr(plan, name)
        is_count = isinstance(number, int) and not isinstance(number, bool)
        if not is_count or not 1 <= number <= _MOST:
            what, why = f"{name} is {shown(number)}", "it counts something that is there"
            yield PlanError(what, why, f"Use an integer from 1 to {_MOST:,}", about=name)
            return
    if plan.batch_size % plan.num_microbatches:
        yield PlanError(
            f"num_microbatches is {plan.num_microbatches}",
            f"a batch of {plan.batch_size} cannot be cut into so many equal microbatches",
            f"Use one of {', '.join(map(str, divisors(plan.batch_size)))}",
            about="num_microbatches",
        )
    yield from _size_faults(plan)


def _size_faults(plan: PlanData) -> Iterator[OptionError]:
    """Return faults of a schedule that would be too large for memory, before it is made."""
    units, takes = sum(map(len, plan.stages)), plan.pipeline_parallel_degree * plan.virtual_stages
    if takes > max(units, len(plan.stages)):
        degree = f"pipeline_parallel_degree is {plan.pipeline_parallel_degree}"
        yield PlanError(
            f"{degree} and virtual_stages is {plan.virtual_stages}",
            f"that takes {takes} stages, and the plan has {units} units",
            "Make one of the two smaller",
        )
    elif takes * plan.num_microbatches > _MOST_PASSES:
        yield PlanError(
            f"num_microbatches is {plan.num_microbatches} on {takes} stages",
            f"a step has {_MOST_PASSES:,} passes of a microbatch through a stage at most",
            "Cut the batch into fewer microbatches",
            about="num_microbatches",
        )


def forecast_faults(plan: PlanData) -> Iterator[OptionError]:
    """Return faults of a forecast or ties that do not match the plan; ignore stale ones."""
    forecast, count = plan.forecast, len(plan.stages)
    if plan.is_stale:
        return
    hint = "Take it out, with null for the forecast and [] for ties, and forecast the plan anew"
    for tie in plan.ties:
        if any(not 0 <= stage < count for stage in tie.stages):
            what = f"the tie of {tie.parameter!r} is on stages {shown(list(tie.stages))}"
            yield PlanError(what, f"the stages are 0 to {count - 1}", hint)
    if forecast is None:
        return
    for name, wanted in (("stages", count), ("memory", plan.pipeline_parallel_degree)):
        if len(getattr(forecast, name)) != wanted:
            what = f"{name} of the forecast has {len(getattr(forecast, name))} entries"
            yield PlanError(what, f"the plan has {wanted} of that", hint)


def divisors(number: int) -> tuple[int, ...]:
    """Return the divisors of a number, in ascending order."""
    small = [each for each in range(1, isqrt(number) + 1) if number % each == 0]
    return tuple(sorted({*small, *(number // each for each in small)}))


def check(plan: PlanData, graph: Graph) -> Placement:
    """Check a plan for this model, and return the stages of the model's nodes.

    Raises:
        PlanError: The plan does not fit the model; all faults at once. A plan for another class of
            model has only one fault, which says so.
    """
    units = {unit.name for unit in graph.units}
    raise_faults(other_model(plan, graph.model, units))
    unit_faults = [*_stage_faults(plan), *opened_faults(plan), *_unit_faults(plan, graph)]
    faults = [*_schedule_faults(plan), *unit_faults, *_model_faults(plan, graph)]
    placement = None
    if not unit_faults:
        try:
            placement = place(graph, plan.stage_of, num_stages=len(plan.stages))
        except OptionError as error:
            faults.append(error)
    raise_faults(faults)
    assert placement is not None
    return placement


def other_model(plan: PlanData, model: str, units: Collection[str]) -> Iterator[OptionError]:
    """Return the single fault of a plan for another class of model; details would not help."""
    lost = [unit for unit in plan.fingerprint.units if unit not in units]
    if model == plan.model or not lost:
        return
    more = f" and {len(lost) - _FEW} more" if len(lost) > _FEW else ""
    named = ", ".join(map(repr, lost[:_FEW]))
    what = f"this plan is for {plan.model}, the model is {model}"
    yield PlanError(what, f"it has no {named}{more}", "Pass its own plan, or plan this model anew")


def opened_faults(plan: PlanData) -> Iterator[OptionError]:
    """Return faults of names in an edited `opened` that are neither units nor contain units."""
    if not plan.is_stale:
        return
    listed = {*plan.stage_of, *plan.fingerprint.units}
    known = {around for unit in listed for around in [unit, *_around(unit)]}
    for name in plan.opened:
        if name not in known and not any(around in listed for around in _around(name)):
            why = f"{plan.model} had no such unit when this plan was made, and none in it"
            yield PlanError(f"opened has {name!r}", why, closest(name, known), about="opened")


def _around(unit: str) -> list[str]:
    """Return the modules around a unit, the innermost first."""
    parts = unit.split(".")
    return [".".join(parts[:end]) for end in range(len(parts) - 1, 0, -1)]


def _schedule_faults(plan: PlanData) -> Iterator[OptionError]:
    try:
        schedule = plan.actions
    except OptionError as error:
        yield error
        return
    if len(plan.stages) != schedule.num_stages:
        degrees = f"pipeline_parallel_degree is {plan.pipeline_parallel_degree}"
        yield PlanError(
            f"the plan has {len(plan.stages)} stages",
            f"{degrees} and virtual_stages is {plan.virtual_stages}, which takes "
            f"{schedule.num_stages}",
            "Add or remove a list of units, or change one of the two",
        )


def _stage_faults(plan: PlanData) -> Iterator[OptionError]:
    for stage, units in enumerate(plan.stages):
        if not units:
            what, why = f"stage {stage} has no units", "every stage computes something"
            yield PlanError(what, why, "Move a unit there, or plan with fewer stages")


def _unit_faults(plan: PlanData, graph: Graph) -> Iterator[OptionError]:
    names = {unit.name for unit in graph.units}
    moved = _opened_or_closed(plan, names)
    listed = [(unit, stage) for stage, units in enumerate(plan.stages) for unit in units]
    unknown = [(unit, stage) for unit, stage in listed if unit not in names]
    yield from _few(_replaced(unit, stage, moved) for unit, stage in unknown if unit in moved)
    unknown = [(unit, stage) for unit, stage in unknown if unit not in moved]
    told = {name for inner in moved.values() for name in inner}
    counts = Counter(unit for unit, _ in listed)
    free = names - set(counts) or names  # a misspelt name is probably one of the missing names
    yield from _few(_unknown(unit, stage, plan, free) for unit, stage in unknown)
    yield from _few(_twice(unit, listed) for unit, count in counts.items() if count > 1)
    needed = [unit.name for unit in placed_units(graph)]
    yield from _few(_missing(unit, plan) for unit in needed if unit not in {*counts, *told})


def _few(faults: Iterator[OptionError]) -> Iterator[OptionError]:
    found = list(faults)
    yield from found[:_SHOWN]
    if len(found) > _SHOWN:
        rest = f"{len(found) - _SHOWN} more units"
        yield PlanError(rest, "the same is wrong with them", "Plan this model anew")


def _unknown(unit: str, stage: int, plan: PlanData, names: set[str]) -> PlanError:
    what = f"stage {stage} has the unit {unit!r}"
    if unit in plan.fingerprint.units:
        why = f"{plan.model} had it when this plan was made and has it no more"
        return PlanError(what, why, "Plan this model anew")
    return PlanError(what, f"{plan.model} has no such unit", closest(unit, names))


def _opened_or_closed(plan: PlanData, names: set[str]) -> dict[str, tuple[str, ...]]:
    """Return units that the model lost when `opened` was edited, with the units in their place."""
    found: dict[str, tuple[str, ...]] = {}
    for unit in plan.stage_of:
        if unit in names or unit not in plan.fingerprint.units:
            continue
        inner = tuple(sorted(name for name in names if name.startswith(f"{unit}.")))
        outer = tuple(name for name in _around(unit) if name in names)
        if inner and any(unit in [name, *_around(name)] for name in plan.opened):
            found[unit] = inner
        elif outer and outer[0] not in plan.fingerprint.units:
            found[unit] = outer[:1]
    return found


def _replaced(unit: str, stage: int, moved: Mapping[str, tuple[str, ...]]) -> PlanError:
    what, now = f"stage {stage} has the unit {unit!r}", moved[unit]
    if unit.startswith(f"{now[0]}."):
        why = f"it is in {now[0]!r}, which `opened` does not go into, so that this is one unit"
        return PlanError(what, why, f"List {now[0]!r} instead, or add it to opened")
    more = f" and {len(now) - _SHOWN} more" if len(now) > _SHOWN else ""
    why = f"`opened` goes into it: its units are {', '.join(now[:_SHOWN])}{more}"
    return PlanError(what, why, "Replace it by them, or take it out of opened")


def _twice(unit: str, listed: list[tuple[str, int]]) -> PlanError:
    stages = [stage for each, stage in listed if each == unit]
    places = " and ".join(f"stage {stage}" for stage in stages)
    return PlanError(f"the unit {unit!r} is on {places}", "a unit runs once", "Keep one of them")


def _missing(unit: str, plan: PlanData) -> PlanError:
    what = f"the unit {unit!r} is on no stage"
    if unit not in plan.fingerprint.units:
        why = f"{plan.model} had none of that name when this plan was made"
        return PlanError(what, why, "Plan this model anew")
    return PlanError(what, "every unit runs somewhere", "Add it to the list of a stage")


def _model_faults(plan: PlanData, graph: Graph) -> Iterator[OptionError]:
    differences = list(plan.fingerprint.differences(graph))
    if not differences:
        return
    more = f" and {len(differences) - _SHOWN} more" if len(differences) > _SHOWN else ""
    told = "; ".join(differences[:_SHOWN])
    what = f"this {graph.model} is not the {plan.model} of the plan"
    yield PlanError(what, f"{told}{more}", "Plan this model anew")
