# SPDX-License-Identifier: Apache-2.0
"""Checks of a plan that may have been edited by hand, or made for another model."""

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
    "tensor_parallel_degree",
)
_CHOICES = {
    "sharding": ("none", "optimizer", "full"),
    "gradient_reduction": ("step", "microbatch"),
}
_MOST = 10**9  # largest valid count of any kind
_MOST_PASSES = 10**7  # largest number of passes of microbatches through stages
_FEW = 3  # largest number of modules named as examples
_SHOWN = 6  # largest number of faults of one kind that are reported one by one


def number_faults(plan: PlanData) -> Iterator[OptionError]:
    """Yield an error for each number of a plan that is wrong for every model.

    Checked are the parallel degrees, the numbers of samples and microbatches, and `virtual_stages`.
    """
    for name in _NUMBERS:
        number = getattr(plan, name)
        is_count = isinstance(number, int) and not isinstance(number, bool)
        if not is_count or not 1 <= number <= _MOST:
            what, why = f"{name} is {shown(number)}", "it is a number that is at least 1"
            yield PlanError(what, why, f"Write an integer from 1 to {_MOST:,}", about=name)
            return
    if plan.batch_size % plan.num_microbatches:
        yield PlanError(
            f"num_microbatches is {plan.num_microbatches}",
            f"a batch of {plan.batch_size} samples cannot be divided into so many equal parts",
            f"Write one of {', '.join(map(str, divisors(plan.batch_size)))}",
            about="num_microbatches",
            kind="indivisible",
        )
    yield from _size_faults(plan)
    yield from _shard_faults(plan)


def _shard_faults(plan: PlanData) -> Iterator[OptionError]:
    """Yield an error for each wrong value of a plan's sharding, or of its gradients' reduction."""
    for name, choices in _CHOICES.items():
        value = getattr(plan, name)
        if value not in choices:
            what, why = f"{name} is {shown(value)}", f"no such {name} exists"
            hint = closest(str(value), choices)
            yield PlanError(what, why, hint, about=name, kind="unknown")
    degree, replicas = plan.shard_degree, plan.data_parallel_degree
    if degree is not None and (degree < 1 or replicas % degree):
        yield PlanError(
            f"shard_degree is {shown(degree)}",
            f"the {replicas} replicas are divided into groups of shard_degree replicas",
            f"Write one of {', '.join(map(str, divisors(replicas)))}, or null for all replicas",
            about="shard_degree",
            kind="indivisible",
        )
    for name, value in (("shard_degree", degree), ("gradient_reduction", plan.gradient_reduction)):
        if plan.sharding == "none" and value not in (None, "step"):
            what, why = f"{name} is {shown(value)}", "without sharding, it has no effect"
            hint = "Leave it out, or write sharding as 'optimizer' or 'full'"
            yield PlanError(what, why, hint, about=name, kind="conflict")


def _size_faults(plan: PlanData) -> Iterator[OptionError]:
    """Yield an error if a plan's numbers make its schedule too large to compute.

    Checked are the number of stages, and the number of passes of microbatches through stages.
    """
    units, takes = sum(map(len, plan.stages)), plan.pipeline_parallel_degree * plan.virtual_stages
    if takes > max(units, len(plan.stages)):
        larger = max("pipeline_parallel_degree", "virtual_stages", key=lambda n: getattr(plan, n))
        degree = f"pipeline_parallel_degree is {plan.pipeline_parallel_degree}"
        yield PlanError(
            f"{degree} and virtual_stages is {plan.virtual_stages}",
            f"this needs {takes} stages, and the plan has {units} modules",
            "Reduce one of the two numbers",
            about=larger,
            kind="too_large",
        )
    elif takes * plan.num_microbatches > _MOST_PASSES:
        yield PlanError(
            f"num_microbatches is {plan.num_microbatches} with {takes} stages",
            f"their product must be at most {_MOST_PASSES:,}",
            "Use fewer microbatches or fewer stages",
            about="num_microbatches",
            kind="too_large",
        )


def forecast_faults(plan: PlanData) -> Iterator[OptionError]:
    """Yield an error for each wrong stage in a plan's forecast or ties.

    Ties are parameters that several stages hold. Nothing is yielded for a plan that was edited
    after its forecast was made, because its forecast and ties are not used.
    """
    forecast, count = plan.forecast, len(plan.stages)
    if plan.is_stale:
        return
    hint = "Set forecast to null and ties to [] in the plan file, and run smp.forecast on the plan"
    for tie in plan.ties:
        if any(not 0 <= stage < count for stage in tie.stages):
            what = f"ties has {tie.parameter!r} on the stages {shown(list(tie.stages))}"
            yield PlanError(what, f"the plan has the stages 0 to {count - 1}", hint, about="ties")
    if forecast is None:
        return
    for name, wanted in (("stages", count), ("memory", plan.pipeline_parallel_degree)):
        if len(getattr(forecast, name)) != wanted:
            what = f"{name} of the forecast has {len(getattr(forecast, name))} entries"
            kind = "stages" if name == "stages" else "ranks in a pipeline"
            yield PlanError(what, f"the plan has {wanted} {kind}", hint, about=("forecast", name))


def divisors(number: int) -> tuple[int, ...]:
    """Return the divisors of a number, in ascending order."""
    small = [each for each in range(1, isqrt(number) + 1) if number % each == 0]
    return tuple(sorted({*small, *(number // each for each in small)}))


def check(plan: PlanData, graph: Graph) -> Placement:
    """Check that a model can run with a plan, and return the stages of the model's nodes.

    Raises:
        PlanError: The plan does not match the model. All errors are reported at once; for a model
            of another class, there is only one error.
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
    """Yield one error if a plan was made for another class of model.

    A model of another class passes if it contains all modules of the plan.

    Args:
        plan: Plan to check.
        model: Class of the model.
        units: Names of the model's modules that are not split further.
    """
    lost = [unit for unit in plan.fingerprint.units if unit not in units]
    if model == plan.model or not lost:
        return
    more = f" and {len(lost) - _FEW} more" if len(lost) > _FEW else ""
    named = ", ".join(map(repr, lost[:_FEW]))
    what = f"this plan is for {plan.model}, and the model is {model}"
    why = f"the model lacks {named}{more}"
    hint = "Pass the plan of this model, or make a new plan for it"
    yield PlanError(what, why, hint, about="model", kind="other_model")


def opened_faults(plan: PlanData) -> Iterator[OptionError]:
    """Yield an error for each name in `opened` that was no module of the plan's model.

    `opened` lists the modules that are divided. Only a plan that was edited by hand is checked.
    """
    if not plan.is_stale:
        return
    listed = {*plan.stage_of, *plan.fingerprint.units}
    known = {around for unit in listed for around in [unit, *_around(unit)]}
    for name in plan.opened:
        if name not in known and not any(around in listed for around in _around(name)):
            why = f"{plan.model} had no module of this name when the plan was made"
            what, hint = f"opened has {name!r}", closest(name, known)
            yield PlanError(what, why, hint, about="opened", kind="unknown")


def _around(unit: str) -> list[str]:
    """Return the names of the modules that contain a unit, the innermost first."""
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
            f"{degrees} and virtual_stages is {plan.virtual_stages}, which needs "
            f"{schedule.num_stages}",
            "Add or remove lists of modules in stages, or change one of these two numbers",
            about="stages",
            kind="conflict",
        )


def _stage_faults(plan: PlanData) -> Iterator[OptionError]:
    for stage, units in enumerate(plan.stages):
        if not units:
            what, why = f"stage {stage} has no module", "each stage needs at least one module"
            hint = "Move a module to this stage, or make a plan with fewer stages"
            yield PlanError(what, why, hint, about=("stages", stage), kind="empty_stage")


def _unit_faults(plan: PlanData, graph: Graph) -> Iterator[OptionError]:
    names = {unit.name for unit in graph.units}
    moved = _opened_or_closed(plan, names)
    listed = [(unit, stage) for stage, units in enumerate(plan.stages) for unit in units]
    unknown = [(unit, stage) for unit, stage in listed if unit not in names]
    yield from _few(_replaced(unit, stage, moved) for unit, stage in unknown if unit in moved)
    unknown = [(unit, stage) for unit, stage in unknown if unit not in moved]
    reported = {name for inner in moved.values() for name in inner}
    counts = Counter(unit for unit, _ in listed)
    free = names - set(counts) or names  # a misspelt name is probably a missing one
    yield from _few(_unknown(unit, stage, plan, free) for unit, stage in unknown)
    yield from _few(_twice(unit, listed) for unit, count in counts.items() if count > 1)
    needed = [unit.name for unit in placed_units(graph)]
    yield from _few(_missing(unit, plan) for unit in needed if unit not in {*counts, *reported})


def _few(faults: Iterator[OptionError]) -> Iterator[OptionError]:
    """Yield the first 6 errors of one kind, and one more error with the number of the others."""
    found = list(faults)
    yield from found[:_SHOWN]
    if len(found) > _SHOWN:
        what = f"{len(found) - _SHOWN} more modules have the same fault"
        why = f"only the first {_SHOWN} are listed"
        yield PlanError(what, why, "Make a new plan for this model", about="stages")


def _unknown(unit: str, stage: int, plan: PlanData, names: set[str]) -> PlanError:
    what, about = f"stage {stage} has the module {unit!r}", ("stages", stage, unit)
    if unit in plan.fingerprint.units:
        why = f"{plan.model} had this module when the plan was made, and no longer has it"
        hint, kind = "Make a new plan for this model", "removed"
    else:
        why, hint, kind = f"{plan.model} has no such module", closest(unit, names), "unknown"
    return PlanError(what, why, hint, about=about, kind=kind)


def _opened_or_closed(plan: PlanData, names: set[str]) -> dict[str, tuple[str, ...]]:
    """Return, for each unit that an edit of `opened` removed, the units that replace it.

    `opened` is the plan's list of modules that are split. A unit is a module that is not split.

    Args:
        plan: Plan to check.
        names: Names of all units of the model.
    """
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
    what, now = f"stage {stage} has the module {unit!r}", moved[unit]
    about = ("stages", stage, unit)
    if unit.startswith(f"{now[0]}."):
        why = f"it is inside {now[0]!r}, which is not divided, because opened does not list it"
        hint = f"Write {now[0]!r} instead, or add it to opened"
        return PlanError(what, why, hint, about=about, kind="undivided")
    more = f" and {len(now) - _SHOWN} more" if len(now) > _SHOWN else ""
    why = f"opened lists it, so it is divided into {', '.join(now[:_SHOWN])}{more}"
    hint = "Replace it by these modules, or remove it from opened"
    return PlanError(what, why, hint, about=about, kind="divided")


def _twice(unit: str, listed: list[tuple[str, int]]) -> PlanError:
    stages = [stage for each, stage in listed if each == unit]
    places = " and ".join(f"stage {stage}" for stage in stages)
    what, why = f"the module {unit!r} is on {places}", "a module runs on one stage only"
    hint, about = "Remove it from all stages but one", ("stages", unit)
    return PlanError(what, why, hint, about=about, kind="repeated")


def _missing(unit: str, plan: PlanData) -> PlanError:
    what, about = f"the module {unit!r} is on no stage", ("stages", unit)
    if unit not in plan.fingerprint.units:
        why = f"{plan.model} had no such module when the plan was made"
        return PlanError(what, why, "Make a new plan for this model", about=about, kind="added")
    why = "each module needs a stage to run on"
    return PlanError(what, why, "Add its name to the list of a stage", about=about, kind="missing")


def _model_faults(plan: PlanData, graph: Graph) -> Iterator[OptionError]:
    differences = list(plan.fingerprint.differences(graph))
    if not differences:
        return
    more = f" and {len(differences) - _SHOWN} more" if len(differences) > _SHOWN else ""
    why = "; ".join(differences[:_SHOWN])
    what = f"this {graph.model} differs from the {plan.model} of the plan"
    hint, about = "Make a new plan for this model", "fingerprint"
    yield PlanError(what, f"{why}{more}", hint, about=about, kind="difference")
