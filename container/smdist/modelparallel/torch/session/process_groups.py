# SPDX-License-Identifier: Apache-2.0
"""Process groups of this rank: one for each axis of a rank layout.

An axis is a kind of group, such as the ranks of a pipeline or the replicas of a stage. Groups use
the backend of the default group. Axes with the same members share a group, and an axis with every
rank uses the default group itself.

On the backend "smdist" a group is only a number, since all connections exist already.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist

from sagemaker_dist.errors import OptionError
from smdist.modelparallel.core.rank_layout import Axis, Coordinates, RankLayout

_Members = tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Groups:
    """Position of this rank in a layout, and its process group of each axis.

    An axis is a kind of group: the world, a pipeline (PP), replicas (RDP), and so on.

    Attributes:
        layout: Layout of all ranks.
        rank: World rank of this process.
        ranks: World ranks of this rank's group, in group order, by axis.
        pipelines: World ranks of every pipeline, in the order of stages.
        replicas: World ranks of every replica of the model: those that need the same batch.
        by_members: Process groups that this rank is in, by the world ranks of their members.
    """

    layout: RankLayout
    rank: int
    ranks: Mapping[Axis, _Members]
    pipelines: tuple[_Members, ...] = field(repr=False)
    replicas: tuple[_Members, ...] = field(repr=False)
    by_members: Mapping[_Members, dist.ProcessGroup] = field(repr=False)

    def of(self, axis: Axis) -> dist.ProcessGroup:
        """Return this rank's process group of an axis, such as its pipeline (PP).

        The process group numbers its ranks in the order in which `members` lists them.
        """
        return self.by_members[self.members(axis)]

    def members(self, axis: Axis) -> _Members:
        """Return the world ranks of this rank's group for an axis, in group order."""
        return self.ranks[axis]

    def rank_in(self, axis: Axis) -> int:
        """Return this rank's number in its group for an axis, such as its pipeline (PP)."""
        return self.members(axis).index(self.rank)

    @property
    def coordinates(self) -> Coordinates:
        """Position of this rank: in its pipeline, in tensor parallelism and among replicas."""
        return self.layout.coordinates(self.rank)

    @property
    def pp_rank(self) -> int:
        """Number of this rank in its pipeline."""
        return self.rank_in(Axis.PP)

    @property
    def pp_size(self) -> int:
        """Number of ranks in a pipeline."""
        return len(self.ranks[Axis.PP])

    @property
    def tp_rank(self) -> int:
        """Number of this rank among the ranks over which its tensors are split."""
        return self.rank_in(Axis.TP)

    @property
    def tp_size(self) -> int:
        """Number of ranks over which each tensor is split."""
        return len(self.ranks[Axis.TP])

    @property
    def rdp_rank(self) -> int:
        """Number of this rank among the ranks that hold the same parameters."""
        return self.rank_in(Axis.RDP)

    @property
    def rdp_size(self) -> int:
        """Number of ranks that hold the same parameters."""
        return len(self.ranks[Axis.RDP])

    @property
    def dp_rank(self) -> int:
        """Number of this rank among the ranks that compute the same stage."""
        return self.rank_in(Axis.DP)

    @property
    def dp_size(self) -> int:
        """Number of ranks that compute the same stage."""
        return len(self.ranks[Axis.DP])

    @property
    def mp_rank(self) -> int:
        """Number of this rank in its replica of the model."""
        return self.rank_in(Axis.MP)

    @property
    def mp_size(self) -> int:
        """Number of ranks in a replica of the model."""
        return len(self.ranks[Axis.MP])


def make_groups(layout: RankLayout) -> Groups:
    """Make the process groups of all axes of a layout, and return them; all ranks must call this.

    Raises:
        OptionError: There is no default group, it has another number of ranks than the layout, or
            its backend does not support CPU tensors.
    """
    world = default_group()
    if layout.size != world.size():
        raise OptionError(
            f"the layout has {layout.size} ranks and the default group has {world.size()}",
            "every rank of the group needs a position in the layout",
            f"Make the layout with size={world.size()}",
            about="size",
            kind="difference",
        )
    rank = world.rank()
    made = {tuple(range(layout.size)): world}
    for members in _in_order(layout):
        if members not in made and (len(members) > 1 or rank in members):
            made[members] = new_group(members, world)
    return Groups(
        layout=layout,
        rank=rank,
        ranks={axis: layout.members(axis, rank) for axis in Axis},
        pipelines=layout.all_members(Axis.PP),
        replicas=layout.all_members(Axis.MP),
        by_members={members: group for members, group in made.items() if rank in members},
    )


def new_group(members: Iterable[int], world: dist.ProcessGroup) -> Any:
    """Make a process group of some world ranks, with the timeout of the default group.

    Every rank has to call this for every group, in the same order, even for groups without this
    rank. Only a group of a single rank is made by this rank alone.

    Args:
        members: World ranks of the group, in group order.
        world: Default process group.
    """
    members = list(members)
    backend = world._get_backend(torch.device("cpu"))
    options = getattr(backend, "options", None)  # None on our backend, which has its own timeout
    return dist.new_group(
        members,
        timeout=getattr(options, "_timeout", None),
        use_local_synchronization=len(members) == 1,
    )


def default_group() -> dist.ProcessGroup:
    """Return torch's default group, after a check that it supports CPU tensors.

    Raises:
        OptionError: There is no default group, or it supports no CPU tensors.
    """
    world = dist.group.WORLD if dist.is_initialized() else None
    if world is None:
        raise OptionError(
            "torch.distributed is not initialized",
            "model parallelism makes its process groups from the default group",
            "Call smp.init() first",
            kind="not_initialized",
        )
    if torch.device("cpu") not in world._device_types:
        raise OptionError(
            f"torch.distributed was initialized with the backend {dist.get_backend()!r}",
            "stages also send each other CPU tensors, which this backend does not support",
            'Use init_process_group("smdist"), or let smp.init() do it',
            about="backend",
            kind="unsupported",
        )
    return world


def _in_order(layout: RankLayout) -> list[_Members]:
    """Return the world ranks in every process group of a layout.

    The order of the groups is the same on all ranks. Groups with the same members are listed once.
    """
    every = (members for axis in Axis for members in layout.all_members(axis))
    return list(dict.fromkeys(every))
