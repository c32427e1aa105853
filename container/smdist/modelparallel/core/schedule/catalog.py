# SPDX-License-Identifier: Apache-2.0
"""Every schedule by the name that users ask for it with: what it needs, and how it is made."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import wraps
from types import MappingProxyType

from smdist.modelparallel.core.schedule.actions import Action
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
