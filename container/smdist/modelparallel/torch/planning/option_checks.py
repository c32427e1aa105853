# SPDX-License-Identifier: Apache-2.0
"""Checks of the options of `smp.plan`, which find the faults of all options at once."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from sagemaker_dist.errors import OptionError, closest
from smdist.modelparallel.core.cluster import Cluster
from smdist.modelparallel.core.cost import StateBytes
from smdist.modelparallel.core.graph import Graph
from smdist.modelparallel.core.planner import Problem
from smdist.modelparallel.core.planner.problem import AUTO, OPTIMIZE
from smdist.modelparallel.core.schedule import SCHEDULES

_COUNTS = ("pipeline_parallel_degree", "data_parallel_degree")  # checked only with a cluster


def option_faults(
    cluster: Cluster | None, batch_size: int | None, **options: Any
) -> list[OptionError]:
    """Check options of `smp.plan`, and return an error for each fault.

    Args:
        cluster: Cluster to run on; None skips the checks that need a cluster.
        batch_size: Number of samples in the batch of one replica; None skips the checks that need
            this number.
        options: Options of `smp.plan`, by name; those that are left out are not checked.
    """
    own = list(_own_faults(options))
    known = {name: value for name, value in options.items() if name not in _named(own)}
    if cluster is None:
        known = {name: value for name, value in known.items() if name not in _COUNTS}
    if batch_size is None:
        known.pop("microbatches", None)
    known["schedule"] = known.pop("pipeline", AUTO)
    base = {"cluster": cluster or Cluster(), "batch_size": batch_size or 1, "at": _never}
    base |= {"auto_partition": known.pop("auto_partition", True), "marks": known.pop("marks", {})}
    found = _faults(base, known)
    for name, value in known.items():  # one by one, since a wrong value hides the faults of others
        if not any(name in fault.about for fault in found):
            found += _faults(base, {name: value})
    return [*own, *{str(fault): fault for fault in found}.values()]


def _named(faults: list[OptionError]) -> set[str]:
    return {str(name) for fault in faults for name in fault.about}


def _faults(base: Mapping[str, Any], options: Mapping[str, Any]) -> list[OptionError]:
    try:
        Problem(**base, **options)
    except OptionError as error:
        return list(getattr(error, "faults", (error,)))
    return []


def _never(_: int, __: frozenset[str]) -> tuple[Graph, Any]:
    raise AssertionError(
        "the check of the options requested the costs of a model, which it must not do. Report this"
        " as a bug of smdist"
    )


def _own_faults(options: Mapping[str, Any]) -> Iterator[OptionError]:
    pipeline, known = options.get("pipeline", AUTO), [AUTO, *SCHEDULES]
    if pipeline not in known:
        why = "there is no schedule of this name"
        what, hint = f"pipeline is {pipeline!r}", closest(str(pipeline), known)
        yield OptionError(what, why, hint, about="pipeline", kind="unknown")
    auto = options.get("auto_partition", True)
    if not isinstance(auto, bool):
        why = "it has to be True (the planner chooses the stages) or False (you do)"
        yield OptionError(
            f"auto_partition is {auto!r}", why, "Pass True or False", about="auto_partition"
        )
    stage = options.get("default_partition")
    if stage is not None and (isinstance(stage, bool) or not isinstance(stage, int) or stage < 0):
        why = "it has to be the number of a stage, for all modules that have none assigned"
        hint = "Pass an integer of at least 0, or leave it out"
        yield OptionError(f"default_partition is {stage!r}", why, hint, about="default_partition")
    state = options.get("state")
    if state is not None and not isinstance(state, StateBytes):
        why = "it has to be a smp.StateBytes: the bytes in memory per element of a parameter"
        hint = "Pass smp.StateBytes(weight=2, gradient=2, optimizer=12), with your numbers"
        yield OptionError(f"state is {state!r}", why, hint, about="state")
    weight, word = options.get("memory_weight"), options.get("optimize")
    if word in OPTIMIZE and isinstance(weight, int | float) and 0 <= weight <= 1:
        why = "both choose between speed and memory, optimize as a word, the other as a number"
        hint = "Leave one of them out"
        what = f"optimize is {word!r} and memory_weight is {weight!r}"
        yield OptionError(what, why, hint, about="optimize", kind="conflict")
