# SPDX-License-Identifier: Apache-2.0
"""What the planner is asked: a model, a cluster, a batch, and what the user has decided already."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

from sagemaker_dist.errors import OptionError, closest
from smdist.modelparallel.core.amounts import MOST_BYTES, shown
from smdist.modelparallel.core.cluster import Cluster
from smdist.modelparallel.core.cost import Costs, StateBytes
from smdist.modelparallel.core.errors import PlanError, raise_faults
from smdist.modelparallel.core.graph import Graph
from smdist.modelparallel.core.plan.check import divisors
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
    """What to plan. An option that is None is the planner's to decide.

    Attributes:
        cluster: Where to run. Every rank of it is used.
        at: Captures and measures one microbatch: takes the number of microbatches that a batch is
            cut into, and the units to replace by the modules in them. Called rarely.
        batch_size: Samples of one pipeline in one step.
        pipeline_parallel_degree: Ranks of one pipeline.
        data_parallel_degree: Pipelines beside each other.
        microbatches: Parts of a batch; divides it.
        dropped: Numbers of microbatches that are not tried: the model does not run so.
        schedule: Its name, or "auto".
        active_microbatches: For the schedule "interleaved".
        virtual_stages: Stages on each rank.
        optimize: "speed" or "memory": which of the two stages are balanced by.
        memory_weight: The same as a number, from 0 (time alone) to 1 (memory alone).
        auto_partition: Whether units that nobody placed are the planner's to place.
        default_partition: Where units go otherwise that nobody placed.
        marks: The stage of each module that somebody placed, by name.
        opened: Modules to go into from the start, instead of keeping them whole.
        state: What a trained parameter holds in memory.
        device_memory: Bytes that a rank may use; by default what the cluster's device has.
        split_overhead: What a backward pass in two parts costs more than a whole one, as a share
            of it. Measured: 7 % at a width of 384, 11 % at 768.

    Raises:
        PlanError: Options that are no valid values, or contradict each other; all at once.
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
        """What a rank may use; None where nobody said."""
        return self.device_memory or self.cluster.device.memory_bytes


def _value_faults(problem: Problem) -> Iterator[OptionError]:
    for name in _COUNTS:
        number = getattr(problem, name)
        is_count = isinstance(number, int) and not isinstance(number, bool) and number >= 1
        if not is_count and not (number is None and name != "batch_size"):
            what, why = f"{name} is {shown(number)}", "it counts something that is there"
            yield PlanError(what, why, "Pass an integer of at least 1, or leave it out")
        elif is_count and number > MOST_BYTES:
            what, why = f"{name} is {shown(number)}", "there is nothing of which there are so many"
            yield PlanError(what, why, f"Pass an integer of {MOST_BYTES:,} at most")
    if problem.schedule not in [AUTO, *SCHEDULES]:
        what, why = f"schedule is {problem.schedule!r}", "there is none of this name"
        yield PlanError(what, why, closest(str(problem.schedule), [AUTO, *SCHEDULES]))
    if problem.optimize not in (None, *OPTIMIZE):
        what, why = f"optimize is {problem.optimize!r}", "it is one of two words"
        yield PlanError(what, why, closest(str(problem.optimize), OPTIMIZE))
    stage = problem.default_partition
    if stage is not None and (not isinstance(stage, int) or isinstance(stage, bool) or stage < 0):
        what, why = f"default_partition is {shown(stage)}", "it is the number of a stage, from 0"
        yield PlanError(what, why, "Pass an integer of 0 or more, or leave it out")
    yield from _share_faults("memory_weight", problem.memory_weight)
    yield from _share_faults("split_overhead", problem.split_overhead)


def _share_faults(name: str, number: object) -> Iterator[OptionError]:
    is_number = isinstance(number, int | float) and not isinstance(number, bool)
    if number is not None and not (is_number and 0 <= number <= 1):  # type: ignore[operator]
        what, why = f"{name} is {number!r}", "it is a share, from 0 to 1"
        yield PlanError(what, why, "Pass such a number, or leave it out")


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
        yield PlanError(told, why, f"Use degrees whose product is {size}: of {fitting}")
    if problem.microbatches and problem.batch_size % problem.microbatches:
        yield PlanError(
            f"microbatches is {problem.microbatches}",
            f"a batch of {problem.batch_size} cannot be cut into so many equal parts",
            f"Use one of {', '.join(map(str, divisors(problem.batch_size)))}",
        )


def _hand_faults(problem: Problem) -> Iterator[OptionError]:
    """Options that would be ignored: one says where units go, the other lets the planner do it."""
    by_hand = {"marks": problem.marks, "default_partition": problem.default_partition is not None}
    by_planner = {"memory_weight": problem.memory_weight is not None, "optimize": problem.optimize}
    for name, is_given in (by_hand if problem.auto_partition else by_planner).items():
        if is_given:
            what = f"{name} is given and auto_partition is {problem.auto_partition}"
            who = "the planner places" if problem.auto_partition else "marks place"
            mend = f"Leave it out, or pass auto_partition={not problem.auto_partition}"
            yield PlanError(what, f"{who} all units", mend)
    if not problem.auto_partition:
        yield from _default_faults(problem)


def _default_faults(problem: Problem) -> Iterator[OptionError]:
    """A default stage that is beyond all others, so that stages would stay empty or not be there.

    Whether marks alone ask for a number of stages that is possible, the search finds out.
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
        yield PlanError(f"default_partition is {stage}", why, f"Pass {valid}")


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
        )
