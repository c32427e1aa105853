# SPDX-License-Identifier: Apache-2.0
"""State of smp.init: the options, this rank's position, and its groups once they are known."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch.distributed as dist

from sagemaker_dist.contract.model_parallel import ModelParallel
from sagemaker_dist.errors import OptionError
from smdist.modelparallel.core.rank_layout import Axis, RankLayout
from smdist.modelparallel.torch.session.object_collectives import all_gather_object
from smdist.modelparallel.torch.session.process_groups import Groups, make_groups


@dataclass(slots=True, kw_only=True, eq=False)
class Session:
    """Model parallelism on this rank, from smp.init on.

    Attributes:
        options: Options of smp.init and of the job.
        world: Default group of torch.distributed.
        mail: Second group of the same ranks, only for smp.send, recv_from and broadcast.
        hosts: Number of each rank's host, by rank.
        is_ours: True if smp.init started torch.distributed.
    """

    options: ModelParallel
    world: dist.ProcessGroup = field(repr=False)
    mail: dist.ProcessGroup = field(repr=False)
    hosts: tuple[int, ...]
    local_rank: int
    local_size: int
    is_ours: bool
    _groups: Groups | None = field(default=None, repr=False)

    @property
    def rank(self) -> int:
        """Number of this rank in the world."""
        return self.world.rank()

    @property
    def size(self) -> int:
        """Number of ranks in the world."""
        return self.world.size()

    @property
    def seed(self) -> int:
        """Seed of random numbers."""
        return self.options.seed

    @property
    def is_decided(self) -> bool:
        """True once the number of ranks in a pipeline is known."""
        return self._groups is not None

    @property
    def groups(self) -> Groups:
        """Position and groups of this rank on each axis.

        Raises:
            OptionError: The planner has yet to find the pipeline degree.
        """
        if self._groups is None:
            raise OptionError(
                "which rank has which stage is not known yet",
                "pipeline_parallel_degree is 'auto', which the planner decides at the first step",
                "Ask after the first step, or pass smp.init a number",
            )
        return self._groups

    def members(self, axis: Axis) -> tuple[int, ...]:
        """Return the world ranks of this rank's group of an axis, in group order."""
        return tuple(range(self.size)) if axis is Axis.WORLD else self.groups.members(axis)

    def group_of(self, axis: Axis) -> dist.ProcessGroup:
        """Return this rank's group of an axis."""
        return self.world if axis is Axis.WORLD else self.groups.of(axis)

    def decide(self, pipeline_parallel_degree: int) -> Groups:
        """Make the groups for this pipeline degree; collective. Existing groups are returned.

        Raises:
            OptionError: The degree does not divide the world, differs on another rank, or differs
                from that of the existing groups.
        """
        if self._groups is not None:
            self._check_decided(self._groups, pipeline_parallel_degree)
            return self._groups
        self._check_agreed(pipeline_parallel_degree)
        layout = RankLayout(
            size=self.size,
            pipeline_parallel_degree=pipeline_parallel_degree,
            placement_strategy=self.options.placement_strategy,
        )
        self._groups = make_groups(layout)
        return self._groups

    def _check_decided(self, groups: Groups, degree: int) -> None:
        if groups.pp_size != degree:
            raise OptionError(
                f"the pipeline is to have {degree} ranks",
                f"this session has pipeline_parallel_degree {groups.pp_size}",
                "Keep that one",
            )

    def _check_agreed(self, degree: int) -> None:
        degrees = all_gather_object(degree, self.world)
        for rank, other in enumerate(degrees):
            if other != degrees[0]:
                raise OptionError(
                    f"ranks 0 and {rank} have decided for pipelines of {degrees[0]} and {other}",
                    "all ranks are laid out alike",
                    "Decide on one rank and share it",
                )
