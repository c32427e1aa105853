# SPDX-License-Identifier: Apache-2.0
"""Problem of the planner: a model, a cluster, a batch, and the options that the user decided."""

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
    """Problem to plan. The planner decides each option that is None.

    Attributes:
        cluster: Cluster to run on. All its ranks are used.
        at: Function that captures and measures one microbatch. Its arguments are the number of
            microbatches that a batch is cut into, and the modules to open. It is called rarely.
        batch_size: Number of samples of one pipeline in one step.
        pipeline_parallel_degree: Number of ranks of one pipeline.
        data_parallel_degree: Number of parallel pipelines.
        microbatches: Number of microbatches of a batch; divides the batch size.
        dropped: Numbers of microbatches that are not tried, because the model cannot run with them.
        schedule: Name of the schedule, or "auto".
        active_microbatches: Largest number of microbatches in flight, for "interleaved".
        virtual_stages: Number of stages on each rank.
        optimize: Balance of stages: "speed" or "memory".
        memory_weight: Balance of stages as a number, from 0 (time alone) to 1 (memory alone).
        auto_partition: True if the planner places the units, False if marks do.
        default_partition: Stage of units without a mark, if marks place the units.
        marks: Stage of each marked module, by name.
        opened: Modules to open from the start: the modules in them are the units.
        state: Memory of a trained parameter.
        device_memory: Bytes that a rank may use; the default is the memory of the cluster's device.
        split_overhead: Extra time of a backward pass in two parts, as a fraction of a whole one.
            Measured: 7 % at a width of 384, 11 % at 768.

    Raises:
        PlanError: Options are invalid, or contradict each other; all faults at once.
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
    split_overhead: float = 0.1

    def __post_init__(self) -> None:
        faults = [*_value_faults(self)]
        raise_faults(faults or [*_count_faults(self), *_schedule_faults(self), *_hand_faults(self)])

    @property
    def memory_limit_bytes(self) -> int | None:
        """Bytes that a rank may use; None if unknown."""
        return self.device_memory or self.cluster.device.memory_bytes


def _value_faults(problem: Problem) -> Iterator[OptionError]:
    for name in _COUNTS:
        number = getattr(problem, name)
        is_count = isinstance(number, int) and not isinstance(number, bool) and number >= 1
        if not is_count and not (number is None and name != "batch_size"):
            what, why = f"{name} is {shown(number)}", "it counts something that is there"
            yield PlanError(what, why, "Pass an integer of at least 1, or leave it out", about=name)
        elif is_count and number > MOST_BYTES:
            what, why = f"{name} is {shown(number)}", "there is nothing of which there are so many"
            yield PlanError(what, why, f"Pass an integer of {MOST_BYTES:,} at most", about=name)
    if problem.schedule not in [AUTO, *SCHEDULES]:
        what, why = f"schedule is {problem.schedule!r}", "there is none of this name"
        yield PlanError(what, why, closest(str(problem.schedule), [AUTO, *SCHEDULES]), about=name)
    if problem.optimize not in (None, *OPTIMIZE):
        what, why = f"optimize is {problem.optimize!r}", "it is one of two words"
        yield PlanError(what, why, closest(str(problem.optimize), OPTIMIZE), about=name)
    stage = problem.default_partition
    if stage is not None and (not isinstance(stage, int) or isinstance(stage, bool) or stage < 0):
        what, why = f"default_partition is {shown(stage)}", "it is the number of a stage, from 0"
        yield PlanError(what, why, "Pass an integer of 0 or more, or leave it out", about=name)
    yield from _share_faults("memory_weight", problem.memory_weight)
    yield from _share_faults("split_overhead", problem.split_overhead)


def _share_faults(name: str, number: object) -> Iterator[OptionError]:
    is_number = isinstance(number, int | float) and not isinstance(number, bool)
    if number is not None and not (is_number and 0 <= number <= 1):  # type: ignore[operator]
        what, why = f"{name} is {number!r}", "it is a share, from 0 to 1"
        yield PlanError(what, why, "Pass such a number, or leave it out", about=name)


def _count_faults(problem: Problem) -> Iterator[OptionError]:
    pipeline, data = problem.pipeline_parallel_degree, problem.data_parallel_degree
    size, given = problem.cluster.size, (pipeline or 1) * (data or 1)
    if given != size if pipeline and data else size % given:
        told = " and ".join(
            f"{name} {number}"
            for name, number in [
                ("pipeline_parallel_degree", pipeline),
                ("data_parallel_degree", data),
            ]
            if number
        )
        why = f"there are {size} ranks, and pipelines take all of them"
        fitting = ", ".join(map(str, divisors(size)))
        yield PlanError(
            told,
            why,
            f"Use degrees whose product is {size}: of {fitting}",
            "pipeline_parallel_degree",
        )
    if problem.microbatches and problem.batch_size % problem.microbatches:
        yield PlanError(
            f"microbatches is {problem.microbatches}",
            f"a batch of {problem.batch_size} cannot be cut into so many equal parts",
            f"Use one of {', '.join(map(str, divisors(problem.batch_size)))}",
            about="microbatches",
        )


def _hand_faults(problem: Problem) -> Iterator[OptionError]:
    """Return faults of options that would have no effect with this value of `auto_partition`."""
    by_hand = {"marks": problem.marks, "default_partition": problem.default_partition is not None}
    by_planner = {"memory_weight": problem.memory_weight is not None, "optimize": problem.optimize}
    for name, is_given in (by_hand if problem.auto_partition else by_planner).items():
        if is_given:
            what = f"{name} is given and auto_partition is {problem.auto_partition}"
            who = "the planner places" if problem.auto_partition else "marks place"
            hint = f"Leave it out, or pass auto_partition={not problem.auto_partition}"
            yield PlanError(what, f"{who} all units", hint, about=name)
    if not problem.auto_partition:
        yield from _default_faults(problem)


def _default_faults(problem: Problem) -> Iterator[OptionError]:
    """Return the fault of a default stage that is too large, so that a stage would have no unit.

    The search checks if a pipeline exists with the number of stages that the marks name.
    """
    stage, marked = problem.default_partition, max(problem.marks.values(), default=-1)
    ranks = problem.pipeline_parallel_degree or problem.cluster.size
    stages = ranks * (problem.virtual_stages or 1)
    is_beyond = ranks > 1 and marked < stages <= (stage or 0)
    if stage is not None and (is_beyond or stage > marked + 1):
        count = min(stages, marked + 2)
        valid = f"0 to {count - 1}" if count > 1 else "0"
        why = (
            f"there are {stages} stages, from 0"
            if is_beyond
            else f"stage {marked + 1} would have no units: no module is marked for it"
        )
        yield PlanError(
            f"default_partition is {stage}", why, f"Pass {valid}", about="default_partition"
        )


def _schedule_faults(problem: Problem) -> Iterator[OptionError]:
    if problem.schedule == AUTO:
        return
    kind = SCHEDULES[problem.schedule]
    if problem.active_microbatches and not kind.takes_active_microbatches:
        takers = " or ".join(
            repr(name) for name, each in SCHEDULES.items() if each.takes_active_microbatches
        )
        yield PlanError(
            f"active_microbatches is {problem.active_microbatches}",
            f"the schedule {problem.schedule!r} knows itself how many are under way",
            f"Leave it out, or use the schedule {takers}",
            about="active_microbatches",
        )
    yield from _virtual_faults(problem)


def _virtual_faults(problem: Problem) -> Iterator[OptionError]:
    kind, number = SCHEDULES[problem.schedule], problem.virtual_stages
    least, most = kind.least_virtual_stages, kind.most_virtual_stages
    if number and (number < least or (most is not None and number > most)):
        valid = f"{least}" if most == least else f"{least} or more"
        yield PlanError(
            f"virtual_stages is {number}",
            f"the schedule {problem.schedule!r} takes {valid} on each rank",
            "Leave it out, or use another schedule",
            about="virtual_stages",
        )
