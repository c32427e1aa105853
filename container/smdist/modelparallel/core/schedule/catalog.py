# SPDX-License-Identifier: Apache-2.0
"""Catalog of all schedules: name, limits, and the function that returns the actions of each rank.

The limits come from the SDK, `sagemaker_dist.contract.schedule_limits`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import wraps
from types import MappingProxyType

from sagemaker_dist.contract.schedule_limits import PIPELINES
from smdist.modelparallel.core.schedule.actions import Action
from smdist.modelparallel.core.schedule.backward_first import interleaved
from smdist.modelparallel.core.schedule.breadth_first import looped_bfs
from smdist.modelparallel.core.schedule.depth_first import interleaved_1f1b, zero_bubble
from smdist.modelparallel.core.schedule.dualpipe_v import dualpipe_v
from smdist.modelparallel.core.schedule.one_stage import one_forward_one_backward, simple
from smdist.modelparallel.core.schedule.schedule_shape import Shape, loop, vee
from smdist.modelparallel.core.schedule.zero_bubble_v import zero_bubble_v

Orders = Callable[[Shape], list[list[Action]]]


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduleKind:
    """Kind of schedule, such as 1F1B, for any number of ranks and microbatches.

    Attributes:
        name: Name of the schedule in options, such as "1f1b".
        summary: Short description for users.
        orders: Function that gets the shape of a pipeline, and returns the actions of each rank.
        rank_of: Function that gets the shape of a pipeline, and returns the rank of each stage:
            `loop` (stages 0 1 2 3 on ranks 0 1 0 1) or `vee` (on ranks 0 1 1 0).
        splits_backward: True if weight gradients are computed separately from input gradients.
    """

    name: str
    summary: str
    orders: Orders
    rank_of: Callable[[Shape], tuple[int, ...]] = loop
    splits_backward: bool = False

    @property
    def least_virtual_stages(self) -> int:
        """Smallest number of stages on each rank."""
        return PIPELINES[self.name].least_virtual_stages

    @property
    def most_virtual_stages(self) -> int | None:
        """Largest number of stages on each rank; None for any number."""
        return PIPELINES[self.name].most_virtual_stages

    @property
    def takes_active_microbatches(self) -> bool:
        """True if the schedule uses the option `active_microbatches`."""
        return PIPELINES[self.name].takes_active_microbatches

    @property
    def least_microbatches_per_rank(self) -> int:
        """Smallest number of microbatches per rank.

        A step needs at least this number times the number of ranks of the pipeline.
        """
        return PIPELINES[self.name].least_microbatches_per_rank

    def takes_virtual_stages(self, number: int) -> bool:
        """Return True if each rank can have this number of stages."""
        return PIPELINES[self.name].takes_virtual_stages(number)

    @property
    def is_v(self) -> bool:
        """True if stages are placed in a V, so that the first and the last are on one rank."""
        return self.rank_of is vee


def _each(order: Callable[[Shape, int], list[Action]]) -> Orders:
    """Return a function that calls `order` for each rank of a pipeline, and returns all results.

    Args:
        order: Function `order(shape, rank)` that returns the actions of one rank.
    """

    @wraps(order)
    def orders(shape: Shape) -> list[list[Action]]:
        return [order(shape, rank) for rank in range(shape.num_ranks)]

    return orders


_KINDS = (
    ScheduleKind(
        name="simple", summary="all forwards, then all backwards (GPipe)", orders=_each(simple)
    ),
    ScheduleKind(
        name="interleaved",
        summary="a backward as soon as possible, with a limit of microbatches in flight",
        orders=interleaved,
    ),
    ScheduleKind(
        name="1f1b",
        summary="least memory with one stage on each rank",
        orders=_each(one_forward_one_backward),
    ),
    ScheduleKind(
        name="interleaved_1f1b",
        summary="several stages on each rank, for a shorter bubble with more messages",
        orders=_each(interleaved_1f1b),
    ),
    ScheduleKind(
        name="looped_bfs",
        summary="several stages on each rank, all microbatches through each (breadth first)",
        orders=_each(looped_bfs),
    ),
    ScheduleKind(
        name="zero_bubble",
        summary="weight gradients fill the bubble (ZB-H1, ZB1P)",
        orders=_each(zero_bubble),
        splits_backward=True,
    ),
    ScheduleKind(
        name="zero_bubble_v",
        summary="weight gradients fill the bubble of stages in a V (ZBV)",
        orders=_each(zero_bubble_v),
        rank_of=vee,
        splits_backward=True,
    ),
    ScheduleKind(
        name="dualpipe_v",
        summary="forwards and backwards of stages in a V in turn, split at both ends",
        orders=_each(dualpipe_v),
        rank_of=vee,
        splits_backward=True,
    ),
)
SCHEDULES: Mapping[str, ScheduleKind] = MappingProxyType({kind.name: kind for kind in _KINDS})
"""Kinds of schedules by name."""
