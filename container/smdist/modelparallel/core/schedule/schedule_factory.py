# SPDX-License-Identifier: Apache-2.0
"""Factory of schedules by name, and checks of its arguments, such as the number of microbatches."""

from __future__ import annotations

from collections.abc import Iterator

from sagemaker_dist.errors import OptionError, closest, raise_all
from smdist.modelparallel.core.schedule.actions import Schedule
from smdist.modelparallel.core.schedule.catalog import SCHEDULES, ScheduleKind
from smdist.modelparallel.core.schedule.schedule_shape import Shape


def make_schedule(
    name: str,
    *,
    num_ranks: int,
    num_microbatches: int,
    virtual_stages: int = 1,
    active_microbatches: int | None = None,
) -> Schedule:
    """Return the schedule with this name for a pipeline.

    Args:
        name: Key of SCHEDULES, such as "1f1b".
        num_ranks: Number of ranks of the pipeline.
        num_microbatches: Number of microbatches of one step.
        virtual_stages: Number of stages on each rank.
        active_microbatches: Largest number of microbatches that a rank may hold between forward
            and backward, for "interleaved" only. The default is the number of ranks + 2.

    Raises:
        OptionError: The name is unknown, a number is below 1, or this schedule does not support a
            number. All wrong arguments are reported at once.
    """
    shape = Shape(
        num_ranks=num_ranks,
        num_microbatches=num_microbatches,
        virtual_stages=virtual_stages,
        active_microbatches=active_microbatches,
    )
    raise_all([*_number_faults(shape), *_request_faults(name, shape)])
    kind = SCHEDULES[name]
    return Schedule(
        name=name,
        rank_of=kind.rank_of(shape),
        num_microbatches=num_microbatches,
        orders=tuple(map(tuple, kind.orders(shape))),
    )


def _number_faults(shape: Shape) -> Iterator[OptionError]:
    for name in ("num_ranks", "num_microbatches", "virtual_stages", "active_microbatches"):
        number = getattr(shape, name)
        if number is None and name == "active_microbatches":
            continue
        if not isinstance(number, int) or isinstance(number, bool) or number < 1:
            yield OptionError(
                f"{name} is {number!r}",
                "the number has to be a positive integer",
                "Pass 1 or more",
                about=name,
            )


def _request_faults(name: str, shape: Shape) -> Iterator[OptionError]:
    """Yield an error for an unknown schedule, or for each number that a schedule does not support.

    Args:
        name: Name of a schedule.
        shape: Numbers of ranks, stages and microbatches.
    """
    kind = SCHEDULES.get(name) if isinstance(name, str) else None
    if kind is None:
        yield OptionError(
            f"schedule is {name!r}",
            "no schedule has this name",
            closest(str(name), SCHEDULES),
            about="schedule",
            kind="unknown",
        )
        return
    yield from option_faults(kind, shape.virtual_stages, shape.active_microbatches)
    yield from _too_few_microbatches(name, kind, shape)


def option_faults(
    kind: ScheduleKind, virtual_stages: object, active_microbatches: object
) -> Iterator[OptionError]:
    """Yield an error for each option that this kind of schedule does not support.

    Args:
        kind: Kind of schedule.
        virtual_stages: Number of stages on each rank; None if left out.
        active_microbatches: Largest number of microbatches in flight; None if left out.
    """
    yield from _virtual_stages_faults(kind, virtual_stages)
    yield from _active_faults(kind, active_microbatches)


def _virtual_stages_faults(kind: ScheduleKind, number: object) -> Iterator[OptionError]:
    if not isinstance(number, int) or number < 1:
        return  # left out, or reported by _number_faults
    if not kind.takes_virtual_stages(number):
        least = kind.least_virtual_stages
        has = f"exactly {least}" if kind.most_virtual_stages == least else f"{least} or more"
        yield OptionError(
            f"virtual_stages is {number}",
            f"schedule {kind.name!r} needs {has} stages on each rank",
            f"Pass virtual_stages={least}, or use {_schedules_with(number)}",
            about="virtual_stages",
            kind="conflict",
        )


def _schedules_with(number: int) -> str:
    """Return a text for hints: names of the schedules with `number` stages on each rank."""
    fitting = [repr(name) for name, kind in SCHEDULES.items() if kind.takes_virtual_stages(number)]
    return f"schedule {' or '.join(fitting)}"


def _active_faults(kind: ScheduleKind, number: object) -> Iterator[OptionError]:
    if number is not None and not kind.takes_active_microbatches:
        takers = [repr(name) for name, each in SCHEDULES.items() if each.takes_active_microbatches]
        yield OptionError(
            f"active_microbatches is {number!r}",
            f"the order of schedule {kind.name!r} determines how many microbatches are in flight",
            f"Leave active_microbatches out, or use schedule {' or '.join(takers)}",
            about="active_microbatches",
            kind="conflict",
        )


def _too_few_microbatches(name: str, kind: ScheduleKind, shape: Shape) -> Iterator[OptionError]:
    numbers = (shape.num_ranks, shape.num_microbatches)
    if not all(isinstance(number, int) and number >= 1 for number in numbers):
        return  # reported by _number_faults
    least = kind.least_microbatches_per_rank * shape.num_ranks
    if shape.num_microbatches < least:
        yield OptionError(
            f"num_microbatches is {shape.num_microbatches}",
            f"schedule {name!r} needs at least {least} on {shape.num_ranks} ranks",
            f"Pass num_microbatches={least} or more, or use schedule '1f1b'",
            about="num_microbatches",
        )
