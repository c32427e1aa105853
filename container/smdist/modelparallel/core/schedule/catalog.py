# SPDX-License-Identifier: Apache-2.0
"""Catalog of all schedules by name: the requirements of each, and the function that makes it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import wraps
from types import MappingProxyType

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
    """Properties of a schedule that are known before one is made.

    Attributes:
        summary: Short description for people.
        orders: Function that returns the actions of every rank, by rank.
        rank_of: Function that returns the rank of each stage: `loop` or `vee`.
        least_virtual_stages: Smallest number of stages a rank.
        most_virtual_stages: Largest number of stages a rank; None for any number.
        splits_backward: True if weight gradients are computed separately from input gradients.
        takes_active_microbatches: True if the schedule uses `active_microbatches`.
        least_microbatches_per_rank: Smallest number of microbatches, as a multiple of the ranks.
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
        """Tell whether a rank can have this number of stages."""
        most = self.most_virtual_stages
        return number >= self.least_virtual_stages and (most is None or number <= most)

    @property
    def is_v(self) -> bool:
        """True if stages go down the ranks and up again, so the first and last share a rank."""
        return self.rank_of is vee


def _each(order: Callable[[Shape, int], list[Action]]) -> Orders:
    """Return the orders of all ranks for a schedule in which each rank's order is independent."""

    @wraps(order)
    def orders(shape: Shape) -> list[list[Action]]:
        return [order(shape, rank) for rank in range(shape.num_ranks)]

    return orders


SCHEDULES: Mapping[str, ScheduleKind] = MappingProxyType(
    {
        "simple": ScheduleKind(
            summary="all forwards, then all backwards (GPipe)", orders=_each(simple)
        ),
        "interleaved": ScheduleKind(
            summary="a backward as soon as it can be, with a cap on microbatches in flight",
            orders=interleaved,
            takes_active_microbatches=True,
        ),
        "1f1b": ScheduleKind(
            summary="least memory of one stage a rank", orders=_each(one_forward_one_backward)
        ),
        "interleaved_1f1b": ScheduleKind(
            summary="several stages a rank make the bubble shorter, at more messages",
            orders=_each(interleaved_1f1b),
            least_virtual_stages=2,
            most_virtual_stages=None,
        ),
        "looped_bfs": ScheduleKind(
            summary="several stages a rank, all microbatches through each (breadth first)",
            orders=_each(looped_bfs),
            least_virtual_stages=2,
            most_virtual_stages=None,
        ),
        "zero_bubble": ScheduleKind(
            summary="weight gradients fill the bubble (ZB-H1, ZB1P)",
            orders=_each(zero_bubble),
            most_virtual_stages=None,
            splits_backward=True,
        ),
        "zero_bubble_v": ScheduleKind(
            summary="weight gradients fill the bubble of a V of stages (ZBV)",
            orders=_each(zero_bubble_v),
            rank_of=vee,
            least_virtual_stages=2,
            most_virtual_stages=2,
            splits_backward=True,
        ),
        "dualpipe_v": ScheduleKind(
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
