# SPDX-License-Identifier: Apache-2.0
"""Search for the fastest plan of a Keras model, on the core's planner."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from sagemaker_dist.contract.model_parallel import ModelParallel
from sagemaker_dist.contract.ranges import size_in_bytes
from sagemaker_dist.contract.schedule_limits import AUTO
from sagemaker_dist.errors import OptionError
from smdist.modelparallel.core.cluster import Cluster
from smdist.modelparallel.core.cost import Costs, StateBytes
from smdist.modelparallel.core.graph import Graph
from smdist.modelparallel.core.planner import Problem, find_plan
from smdist.modelparallel.picture.drawable_plan import Plan

_ONE_STAGE: Final = ("1f1b", "interleaved")  # schedules that "auto" tries
_MORE_STAGES: Final = ("interleaved_1f1b", "looped_bfs")

Sample = Callable[[int, frozenset[str]], tuple[Graph, Costs]]


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanInput:
    """Facts about a model that the planner needs.

    Attributes:
        at: Function that returns graph and costs for a number of microbatches.
        batch_size: Number of samples of one pipeline in one step.
        marks: Stage of each layer that the script marked, by its path.
        state: Bytes of weight, gradient and optimizer state for each parameter element.
        data_parallel_degree: Number of replicas; None lets the planner choose.
    """

    at: Sample
    batch_size: int
    marks: Mapping[str, int]
    state: StateBytes
    data_parallel_degree: int | None = None


def plan_for(given: PlanInput, options: ModelParallel, cluster: Cluster) -> Plan:
    """Return the fastest plan with the given options.

    Args:
        given: The model.
        options: Options of smp.init.
        cluster: Ranks to plan for.

    Raises:
        OptionError: No plan is possible with these options; all faults are listed.
    """
    schedules = _schedules(options)
    found: list[Plan] = []
    faults: list[OptionError] = []
    for schedule in schedules:
        try:
            problem = _problem(given, options, cluster, schedule)
            found.append(Plan.of(find_plan(problem), problem))
        except OptionError as error:
            faults.append(error)
    if not found:
        raise faults[0]
    return min(found, key=_step_seconds)


def _schedules(options: ModelParallel) -> tuple[str, ...]:
    if options.pipeline != AUTO:
        return (options.pipeline,)
    if options.virtual_stages not in (None, 1):
        return _MORE_STAGES
    return ("interleaved",) if options.active_microbatches else _ONE_STAGE


def _step_seconds(plan: Plan) -> float:
    assert plan.forecast is not None
    return plan.forecast.step_seconds / plan.batch_size


def _problem(
    given: PlanInput, options: ModelParallel, cluster: Cluster, schedule: str
) -> Problem:  # fmt: skip
    memory: Any = options.device_memory
    return Problem(
        cluster=cluster, at=given.at, batch_size=given.batch_size,
        pipeline_parallel_degree=_number(options.pipeline_parallel_degree),
        microbatches=_number(options.microbatches), schedule=schedule,
        active_microbatches=options.active_microbatches, virtual_stages=options.virtual_stages,
        optimize=options.optimize, memory_weight=options.memory_weight,
        auto_partition=options.auto_partition, default_partition=options.default_partition,
        marks={} if options.auto_partition else given.marks,
        opened=frozenset() if options.auto_partition else _around(given.marks),
        data_parallel_degree=given.data_parallel_degree, state=given.state,
        device_memory=None if memory is None else size_in_bytes(memory), overlaps_sums=False,
    )  # fmt: skip


def _around(marks: Mapping[str, int]) -> frozenset[str]:
    """Return the paths of all layers that contain a marked layer, which have to be divided."""
    parts = [name.split(".") for name in marks]
    return frozenset(".".join(each[:end]) for each in parts for end in range(1, len(each)))


def _number(value: int | str) -> int | None:
    return None if value == AUTO else int(value)
