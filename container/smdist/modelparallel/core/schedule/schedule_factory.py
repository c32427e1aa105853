# SPDX-License-Identifier: Apache-2.0
"""Factory of schedules by name, and checks that report all faults of a request."""

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
    """Make a schedule by name.

    Args:
        name: One of SCHEDULES.
        num_ranks: Number of ranks of the pipeline.
        num_microbatches: Number of microbatches of one step.
        virtual_stages: Number of stages on each rank, more than one for schedules that use them.
        active_microbatches: Largest number of microbatches that a rank may hold between forward
            and backward, for "interleaved". Default: ranks + 2.

    Raises:
        OptionError: The name is unknown, or the schedule cannot use a number; all faults at once.
    """
    shape = Shape(
        num_ranks=num_ranks,
        num_microbatches=num_microbatches,
        virtual_stages=virtual_stages,
        active_microbatches=active_microbatches,
    )
    raise_all([*_bad_numbers(shape), *_bad_request(name, shape)])
    kind = SCHEDULES[name]
    return Schedule(
        name=name,
        rank_of=kind.rank_of(shape),
        num_microbatches=num_microbatches,
        orders=tuple(map(tuple, kind.orders(shape))),
    )


def _bad_numbers(shape: Shape) -> Iterator[OptionError]:
    for name in ("num_ranks", "num_microbatches", "virtual_stages", "active_microbatches"):
        number = getattr(shape, name)
        if number is None and name == "active_microbatches":
            continue
        if not isinstance(number, int) or isinstance(number, bool) or number < 1:
            yield OptionError(
                f"{name} is {number!r}",
                "a pipeline needs at least one",
                "Pass an integer of at least 1",
                about=name,
            )


def _bad_request(name: str, shape: Shape) -> Iterator[OptionError]:
    kind = SCHEDULES.get(name) if isinstance(name, str) else None
    if kind is None:
        yield OptionError(
            f"schedule is {name!r}",
            "there is none of this name",
            closest(str(name), SCHEDULES),
            about="schedule",
        )
        return
    yield from _bad_virtual_stages(name, kind, shape.virtual_stages)
    yield from _bad_active(name, kind, shape.active_microbatches)
    yield from _too_few_microbatches(name, kind, shape)


def _bad_virtual_stages(name: str, kind: ScheduleKind, number: object) -> Iterator[OptionError]:
    if not isinstance(number, int) or number < 1:
        return  # reported by _bad_numbers
    if not kind.takes_virtual_stages(number):
        least = kind.least_virtual_stages
        has = f"exactly {least}" if kind.most_virtual_stages == least else f"{least} or more"
        yield OptionError(
            f"virtual_stages is {number}",
            f"{name!r} has {has} on each rank",
            f"Pass virtual_stages={least}, or {_instead(number)}",
            about="virtual_stages",
        )


def _instead(number: int) -> str:
    fitting = [repr(name) for name, kind in SCHEDULES.items() if kind.takes_virtual_stages(number)]
    return f"for {number} on each rank ask for {' or '.join(fitting)}"


def _bad_active(name: str, kind: ScheduleKind, number: int | None) -> Iterator[OptionError]:
    if number is not None and not kind.takes_active_microbatches:
        takers = [repr(name) for name, kind in SCHEDULES.items() if kind.takes_active_microbatches]
        yield OptionError(
            f"active_microbatches is {number!r}",
            f"how many microbatches {name!r} has in flight follows from its order",
            f"Leave active_microbatches out, or ask for {' or '.join(takers)}",
            about="active_microbatches",
        )


def _too_few_microbatches(name: str, kind: ScheduleKind, shape: Shape) -> Iterator[OptionError]:
    numbers = (shape.num_ranks, shape.num_microbatches)
    if not all(isinstance(number, int) and number >= 1 for number in numbers):
        return  # reported by _bad_numbers
    least = kind.least_microbatches_per_rank * shape.num_ranks
    if shape.num_microbatches < least:
        yield OptionError(
            f"num_microbatches is {shape.num_microbatches}",
            f"{name!r} needs {least} on {shape.num_ranks} ranks",
            f"Pass num_microbatches={least} or more, or ask for '1f1b'",
            about="num_microbatches",
        )
