# SPDX-License-Identifier: Apache-2.0
"""The process groups that a layout needs, on whatever backend the default group has.

On our own backend a group is a number on connections that exist already. Axes with the same
members share a group, and one that has every rank is the default group itself.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist

from sagemaker_dist.errors import OptionError
from smdist.modelparallel.core.layout import Axis, Coordinates, Layout

_Members = tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Groups:
    """Where this rank is, and whom it talks to on each axis.

    Attributes:
        rank: This rank in the world.
        by_members: Every group that this rank is in.
    """

    layout: Layout
    rank: int
    by_members: Mapping[_Members, dist.ProcessGroup] = field(repr=False)

    def of(self, axis: Axis) -> dist.ProcessGroup:
        """This rank's group of an axis; ranks in it are numbered as in `members`."""
        return self.by_members[self.members(axis)]

    def members(self, axis: Axis) -> _Members:
        """The ranks of that group, as the world numbers them."""
        return self.layout.members(axis, self.rank)

    def rank_in(self, axis: Axis) -> int:
        """This rank's number in its group of an axis."""
        return self.members(axis).index(self.rank)

    @property
    def coordinates(self) -> Coordinates:
        """Where this rank is on each axis."""
        return self.layout.coordinates(self.rank)

    @property
    def pp_rank(self) -> int:
        """This rank of its pipeline."""
        return self.rank_in(Axis.PP)

    @property
    def pp_size(self) -> int:
        """Ranks of a pipeline."""
        return self.layout.pipeline_parallel_degree

    @property
    def tp_rank(self) -> int:
        """This rank among those that share its tensors."""
        return self.rank_in(Axis.TP)

    @property
    def tp_size(self) -> int:
        """Ranks that share each tensor."""
        return self.layout.tensor_parallel_degree

    @property
    def rdp_rank(self) -> int:
        """This rank among those that hold the same parameters."""
        return self.rank_in(Axis.RDP)

    @property
    def rdp_size(self) -> int:
        """Ranks that hold the same parameters."""
        return self.layout.reduced_data_parallel_degree

    @property
    def dp_rank(self) -> int:
        """This rank among those of the same stage."""
        return self.rank_in(Axis.DP)

    @property
    def dp_size(self) -> int:
        """Ranks of the same stage."""
        return self.layout.data_parallel_degree

    @property
    def mp_rank(self) -> int:
        """This rank of its replica."""
        return self.rank_in(Axis.MP)

    @property
    def mp_size(self) -> int:
        """Ranks of a replica."""
        return self.pp_size * self.tp_size


def make_groups(layout: Layout) -> Groups:
    """Make the groups of all axes; collective over the default group.

    Raises:
        OptionError: There is no default group, or it has another size, or no CPU tensors.
    """
    world = default_group()
    if layout.size != world.size():
        raise OptionError(
            f"the layout has {layout.size} ranks and the default group has {world.size()}",
            "every rank has its place in the layout",
            "Make the layout for the world that there is",
        )
    rank = world.rank()
    made = {tuple(range(layout.size)): world}
    for members in _in_order(layout):
        if members not in made and (len(members) > 1 or rank in members):
            made[members] = new_group(members, world)
    return Groups(
        layout=layout,
        rank=rank,
        by_members={members: group for members, group in made.items() if rank in members},
    )


def new_group(members: Iterable[int], world: dist.ProcessGroup) -> Any:
    """A group of some ranks that waits as long as the world does.

    Every rank makes all groups, in the same order, but for those of a single rank: that one alone
    makes its own, since all ranks would meet once for each rank.
    """
    members = list(members)
    backend = world._get_backend(torch.device("cpu"))
    options = getattr(backend, "options", None)  # ours sees to it by itself
    return dist.new_group(
        members,
        timeout=getattr(options, "_timeout", None),
        use_local_synchronization=len(members) == 1,
    )


def default_group() -> dist.ProcessGroup:
    """torch's default group, which carries CPU tensors.

    Raises:
        OptionError: There is none, or it does not.
    """
    world = dist.group.WORLD if dist.is_initialized() else None
    if world is None:
        raise OptionError(
            "torch.distributed is not initialized",
            "model parallelism makes its groups of the default group",
            "Call smp.init() first",
        )
    if torch.device("cpu") not in world._device_types:
        raise OptionError(
            f"torch.distributed was initialized with the backend {dist.get_backend()!r}",
            "stages also send each other CPU tensors, which it does not carry",
            'Use init_process_group("cpu:smdist,cuda:nccl"), or leave it to smp.init()',
        )
    return world


def _in_order(layout: Layout) -> list[_Members]:
    """Every member list once, in an order that all ranks agree on."""
    every = (members for axis in Axis for members in layout.all_members(axis))
    return list(dict.fromkeys(every))
