# SPDX-License-Identifier: Apache-2.0
"""Input of the planner: a model, a cluster, a batch, and the options that the user chose."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

from sagemaker_dist.errors import OptionError, closest
from smdist.modelparallel.core.cluster import Cluster
from smdist.modelparallel.core.cost import Costs, StateBytes
from smdist.modelparallel.core.graph import Graph
from smdist.modelparallel.core.plan.plan_check import divisors
from smdist.modelparallel.core.plan_errors import PlanError, raise_faults
from smdist.modelparallel.core.quantities import MOST_BYTES, shown
from smdist.modelparallel.core.schedule import SCHEDULES
from smdist.modelparallel.core.schedule.schedule_factory import option_faults

AUTO: Final = "auto"
OPTIMIZE: Final = ("speed", "memory")
_COUNTS: Final = (
    "batch_size",
    "pipeline_parallel_degree",
    "data_parallel_degree",
    "microbatches",
    "active_microbatches",
    "virtual_stages",
    "device_memory",
)

Sample = Callable[[int, frozenset[str]], tuple[Graph, Costs]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """Model, cluster, batch and options for which a plan is searched.

    The planner chooses each option that is None. A unit is a module that is not divided.

    Attributes:
        cluster: Cluster to run on; the plan uses all its ranks.
        at: Function that returns the graph and the costs of one microbatch. Arguments of the
            function: number of microbatches of a batch, and names of the modules to split. A call
            takes seconds to minutes.
        batch_size: Number of samples of one pipeline in one step.
        pipeline_parallel_degree: Number of ranks of one pipeline.
        data_parallel_degree: Number of parallel pipelines.
        microbatches: Number of microbatches of a batch; divides the batch size.
        dropped: Numbers of microbatches with which the model cannot run; they are not tried.
        schedule: Name of the schedule, or "auto".
        active_microbatches: Largest number of microbatches in flight, for "interleaved".
        virtual_stages: Number of stages on each rank.
        optimize: "speed" to balance mainly the time of stages, "memory" to balance their memory.
        memory_weight: Weight of memory when stages are balanced, from 0 (time alone) to 1 (memory
            alone).
        auto_partition: True if the planner chooses the stage of each unit. False if `marks` and
            `default_partition` set the stages.
        default_partition: Stage of units without a mark, if `auto_partition` is False.
        marks: Stage of each module that the user marked with `smp.partition()`, by name.
        opened: Names of the modules that are split from the start, so that the modules inside
            them can be on different stages.
        state: Bytes of weight, gradient and optimizer state for each parameter element.
        device_memory: Bytes that a rank may use; the default is the memory of the cluster's device.
        overlaps_sums: True if gradients are summed over replicas during the last backward pass.
        split_overhead: Additional time of a backward pass that computes input and weight gradients
            separately, as a fraction of the whole pass. Measured values are 7 % (model width 384)
            and 11 % (width 768).

    Raises:
        PlanError: Options are invalid or contradict each other; all wrong options are reported at
            once.
    """

    cluster: Cluster
    at: Sample
    batch_size: int
    pipeline_parallel_degree: int | None = None
    data_parallel_degree: int | None = None
    microbatches: int | None = None
    dropped: frozenset[int] = frozenset()
    schedule: str = AUTO
    active_microbatches: int | None = None
    virtual_stages: int | None = None
    optimize: str | None = None
    memory_weight: float | None = None
    auto_partition: bool = True
    default_partition: int | None = None
    marks: Mapping[str, int] = field(default_factory=dict)
    opened: frozenset[str] = frozenset()
    state: StateBytes = field(default_factory=StateBytes)
    device_memory: int | None = None
    overlaps_sums: bool = True
    split_overhead: float = 0.1

    def __post_init__(self) -> None:
        faults = [*_value_faults(self)]
        raise_faults(
            faults or [*_count_faults(self), *_schedule_faults(self), *_placement_faults(self)]
        )

    @property
    def memory_limit_bytes(self) -> int | None:
        """Bytes that a rank may use; None if unknown, which means no limit."""
        return self.device_memory or self.cluster.device.memory_bytes

    @property
    def num_marked_stages(self) -> int:
        """Number of stages that `smp.partition()` and `default_partition` require."""
        return max([self.default_partition or 0, *self.marks.values()]) + 1


def _value_faults(problem: Problem) -> Iterator[OptionError]:
    for name in _COUNTS:
        number = getattr(problem, name)
        is_count = isinstance(number, int) and not isinstance(number, bool) and number >= 1
        if not is_count and not (number is None and name != "batch_size"):
            what, why = f"{name} is {shown(number)}", "it is a number that is at least 1"
            optional = "" if name == "batch_size" else ", or leave it out"
            hint = f"Pass an integer of at least 1{optional}"
            yield PlanError(what, why, hint, about=name)
        elif is_count and number > MOST_BYTES:
            what, why = (
                f"{name} is {shown(number)}",
                f"it is above the largest valid value, {MOST_BYTES:,}",
            )
            hint = f"Pass an integer of at most {MOST_BYTES:,}"
            yield PlanError(what, why, hint, about=name, kind="too_large")
    if problem.schedule not in [AUTO, *SCHEDULES]:
        what, why = f"schedule is {problem.schedule!r}", "no schedule has this name"
        hint = closest(str(problem.schedule), [AUTO, *SCHEDULES])
        yield PlanError(what, why, hint, about="schedule", kind="unknown")
    if problem.optimize not in (None, *OPTIMIZE):
        what, why = f"optimize is {problem.optimize!r}", "it must be 'speed' or 'memory'"
        hint = closest(str(problem.optimize), OPTIMIZE)
        yield PlanError(what, why, hint, about="optimize", kind="unknown")
    stage = problem.default_partition
    if stage is not None and (not isinstance(stage, int) or isinstance(stage, bool) or stage < 0):
        what, why = (
            f"default_partition is {shown(stage)}",
            "it is the number of a stage, counted from 0",
        )
        hint = "Pass an integer of at least 0, or leave it out"
        yield PlanError(what, why, hint, about="default_partition")
    yield from _fraction_faults("memory_weight", problem.memory_weight)
    yield from _fraction_faults("split_overhead", problem.split_overhead)


def _fraction_faults(name: str, number: object) -> Iterator[OptionError]:
    is_number = isinstance(number, int | float) and not isinstance(number, bool)
    if number is not None and not (is_number and 0 <= number <= 1):  # type: ignore[operator]
        what, why = f"{name} is {number!r}", "it is a fraction"
        yield PlanError(what, why, "Pass a number from 0 to 1, or leave it out", about=name)


def _count_faults(problem: Problem) -> Iterator[OptionError]:
    pipeline, data = problem.pipeline_parallel_degree, problem.data_parallel_degree
    size, given = problem.cluster.size, (pipeline or 1) * (data or 1)
    if given != size if pipeline and data else size % given:
        requested = " and ".join(
            f"{name} is {number}"
            for name, number in [
                ("pipeline_parallel_degree", pipeline),
                ("data_parallel_degree", data),
            ]
            if number
        )
        why = f"the cluster has {size} ranks, and the pipelines must use all of them"
        fitting = ", ".join(map(str, divisors(size)))
        hint = f"Pass degrees whose product is {size}; the divisors of {size} are {fitting}"
        about = "pipeline_parallel_degree" if pipeline else "data_parallel_degree"
        yield PlanError(requested, why, hint, about=about, kind="indivisible")
    if problem.microbatches and problem.batch_size % problem.microbatches:
        yield PlanError(
            f"microbatches is {problem.microbatches}",
            f"a batch of {problem.batch_size} samples cannot be divided into so many equal parts",
            f"Pass one of {', '.join(map(str, divisors(problem.batch_size)))}",
            about="microbatches",
            kind="indivisible",
        )


def _placement_faults(problem: Problem) -> Iterator[OptionError]:
    """Yield an error for each option that has no effect with this value of `auto_partition`."""
    by_marks = {"marks": problem.marks, "default_partition": problem.default_partition is not None}
    by_planner = {"memory_weight": problem.memory_weight is not None, "optimize": problem.optimize}
    for name, is_given in (by_marks if problem.auto_partition else by_planner).items():
        if is_given:
            what = f"{name} is passed and auto_partition is {problem.auto_partition}"
            who = "the planner chooses" if problem.auto_partition else "marks choose"
            why = f"{name} has no effect, because {who} the stages of all modules"
            hint = f"Leave {name} out, or pass auto_partition={not problem.auto_partition}"
            yield PlanError(what, why, hint, about=name, kind="conflict")
    if not problem.auto_partition:
        yield from _default_faults(problem)


def _default_faults(problem: Problem) -> Iterator[OptionError]:
    """Yield an error if `default_partition` is not a stage, or if a stage would have no module."""
    stage, marked = problem.default_partition, max(problem.marks.values(), default=-1)
    ranks = problem.pipeline_parallel_degree or problem.cluster.size
    stages = ranks * (problem.virtual_stages or 1)
    is_beyond = ranks > 1 and marked < stages <= (stage or 0)
    if stage is not None and (is_beyond or stage > marked + 1):
        count = min(stages, marked + 2)
        valid = f"0 to {count - 1}" if count > 1 else "0"
        why = (
            f"the stages are 0 to {stages - 1}"
            if is_beyond
            else f"stage {marked + 1} would have no module, because no module is marked for it"
        )
        hint = f"Pass a stage from {valid}" if count > 1 else f"Pass {valid}"
        what, kind = f"default_partition is {stage}", "" if is_beyond else "empty_stage"
        yield PlanError(what, why, hint, about="default_partition", kind=kind)


def _schedule_faults(problem: Problem) -> Iterator[OptionError]:
    """Yield an error for each option that the requested schedule does not support."""
    if problem.schedule != AUTO:
        kind = SCHEDULES[problem.schedule]
        for fault in option_faults(kind, problem.virtual_stages, problem.active_microbatches):
            yield PlanError(fault.what, fault.why, fault.hint, fault.about, fault.kind)
