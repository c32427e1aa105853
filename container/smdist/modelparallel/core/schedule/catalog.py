# SPDX-License-Identifier: Apache-2.0
"""Every schedule by the name that users ask for it with: what it needs, and how it is made."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import wraps
from types import MappingProxyType

from sagemaker_dist.errors import OptionError, closest, raise_all
from smdist.modelparallel.core.schedule.actions import Action, Schedule
from smdist.modelparallel.core.schedule.backward_first import interleaved
from smdist.modelparallel.core.schedule.breadth_first import looped_bfs
from smdist.modelparallel.core.schedule.dualpipe_v import dualpipe_v
from smdist.modelparallel.core.schedule.one_stage import one_forward_one_backward, simple
from smdist.modelparallel.core.schedule.rounds import interleaved_1f1b, zero_bubble
from smdist.modelparallel.core.schedule.shape import Shape, loop, vee
from smdist.modelparallel.core.schedule.zero_bubble_v import zero_bubble_v

Orders = Callable[[Shape], list[list[Action]]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """What there is to know about a schedule before one is made.

    Attributes:
        summary: For people, in a few words.
        orders: The actions of every rank, by rank.
        rank_of: Which rank each stage is on: `loop` or `vee`.
        least_virtual_stages: Stages a rank, at least.
        most_virtual_stages: Stages a rank, at most; None for any number.
        splits_backward: Whether weight gradients are computed apart from input gradients.
        takes_active_microbatches: Whether `active_microbatches` means something.
        least_microbatches_per_rank: It needs so many times the ranks in microbatches.
    """

    summary: str
    orders: Orders
    rank_of: Callable[[Shape], tuple[int, ...]] = loop
    least_virtual_stages: int = 1
    most_virtual_stages: int | None = 1
    splits_backward: bool = False
    takes_active_microbatches: bool = False
    least_microbatches_per_rank: int = 0

    def takes_virtual_stages(self, number: int) -> bool:
        """Whether a rank can have so many stages."""
        most = self.most_virtual_stages
        return number >= self.least_virtual_stages and (most is None or number <= most)

    @property
    def is_v(self) -> bool:
        """Whether the stages go down the ranks and up again, so that first and last share one."""
        return self.rank_of is vee


def _each(order: Callable[[Shape, int], list[Action]]) -> Orders:
    """Where a rank knows its order without the others: it for each of them."""

    @wraps(order)
    def orders(shape: Shape) -> list[list[Action]]:
        return [order(shape, rank) for rank in range(shape.num_ranks)]

    return orders


SCHEDULES: Mapping[str, Kind] = MappingProxyType(
    {
        "simple": Kind(summary="all forwards, then all backwards (GPipe)", orders=_each(simple)),
        "interleaved": Kind(
            summary="a backward as soon as it can be, with a cap on microbatches in flight",
            orders=interleaved,
            takes_active_microbatches=True,
        ),
        "1f1b": Kind(
            summary="least memory of one stage a rank", orders=_each(one_forward_one_backward)
        ),
        "interleaved_1f1b": Kind(
            summary="several stages a rank make the bubble shorter, at more messages",
            orders=_each(interleaved_1f1b),
            least_virtual_stages=2,
            most_virtual_stages=None,
        ),
        "looped_bfs": Kind(
            summary="several stages a rank, all microbatches through each (breadth first)",
            orders=_each(looped_bfs),
            least_virtual_stages=2,
            most_virtual_stages=None,
        ),
        "zero_bubble": Kind(
            summary="weight gradients fill the bubble (ZB-H1, ZB1P)",
            orders=_each(zero_bubble),
            most_virtual_stages=None,
            splits_backward=True,
        ),
        "zero_bubble_v": Kind(
            summary="weight gradients fill the bubble of a V of stages (ZBV)",
            orders=_each(zero_bubble_v),
            rank_of=vee,
            least_virtual_stages=2,
            most_virtual_stages=2,
            splits_backward=True,
        ),
        "dualpipe_v": Kind(
            summary="forward and backward of a V of stages in turn, split at both ends",
            orders=_each(dualpipe_v),
            rank_of=vee,
            least_virtual_stages=2,
            most_virtual_stages=2,
            splits_backward=True,
            least_microbatches_per_rank=2,
        ),
    }
)


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
        num_ranks: Ranks of the pipeline.
        num_microbatches: Microbatches of one step.
        virtual_stages: Stages on each rank, more than one for schedules that use them.
        active_microbatches: For "interleaved": how many a rank may hold between forward and
            backward. Default: ranks + 2.

    Raises:
        OptionError: An unknown name, a number that the schedule cannot use. All at once.
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
            )


def _bad_request(name: str, shape: Shape) -> Iterator[OptionError]:
    kind = SCHEDULES.get(name) if isinstance(name, str) else None
    if kind is None:
        yield OptionError(
            f"schedule is {name!r}", "there is none of this name", closest(str(name), SCHEDULES)
        )
        return
    yield from _bad_virtual_stages(name, kind, shape.virtual_stages)
    yield from _bad_active(name, kind, shape.active_microbatches)
    yield from _too_few_microbatches(name, kind, shape)


def _bad_virtual_stages(name: str, kind: Kind, number: object) -> Iterator[OptionError]:
    if not isinstance(number, int) or number < 1:
        return  # told already
    if not kind.takes_virtual_stages(number):
        least = kind.least_virtual_stages
        has = f"exactly {least}" if kind.most_virtual_stages == least else f"{least} or more"
        yield OptionError(
            f"virtual_stages is {number}",
            f"{name!r} has {has} on each rank",
            f"Pass virtual_stages={least}, or {_instead(number)}",
        )


def _instead(number: int) -> str:
    fitting = [repr(name) for name, kind in SCHEDULES.items() if kind.takes_virtual_stages(number)]
    return f"for {number} on each rank ask for {' or '.join(fitting)}"


def _bad_active(name: str, kind: Kind, number: int | None) -> Iterator[OptionError]:
    if number is not None and not kind.takes_active_microbatches:
        takers = [repr(name) for name, kind in SCHEDULES.items() if kind.takes_active_microbatches]
        yield OptionError(
            f"active_microbatches is {number!r}",
            f"how many microbatches {name!r} has in flight follows from its order",
            f"Leave active_microbatches out, or ask for {' or '.join(takers)}",
        )


def _too_few_microbatches(name: str, kind: Kind, shape: Shape) -> Iterator[OptionError]:
    numbers = (shape.num_ranks, shape.num_microbatches)
    if not all(isinstance(number, int) and number >= 1 for number in numbers):
        return  # told already
    least = kind.least_microbatches_per_rank * shape.num_ranks
    if shape.num_microbatches < least:
        yield OptionError(
            f"num_microbatches is {shape.num_microbatches}",
            f"{name!r} needs {least} on {shape.num_ranks} ranks",
            f"Pass num_microbatches={least} or more, or ask for '1f1b'",
        )
