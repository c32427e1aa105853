# SPDX-License-Identifier: Apache-2.0
"""What smp.init leaves: the options, this rank's place, and its groups once they are known."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch.distributed as dist

from sagemaker_dist.contract.model_parallel import ModelParallel
from sagemaker_dist.errors import OptionError
from smdist.modelparallel.core.layout import Axis, Layout
from smdist.modelparallel.torch.groups import Groups, make_groups
from smdist.modelparallel.torch.mail.post import gather


@dataclass(slots=True, kw_only=True, eq=False)
class Session:
    """Model parallelism on this rank, from smp.init on.

    Attributes:
        options: What smp.init and the job asked for.
        world: torch's default group.
        mail: The same ranks once more: smp.send, recv_from and broadcast go over it alone.
        hosts: By rank, the number of its host.
        is_ours: Whether smp.init started torch.distributed.
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
        """This rank in the world."""
        return self.world.rank()

    @property
    def size(self) -> int:
        """Ranks of the world."""
        return self.world.size()

    @property
    def seed(self) -> int:
        """What random numbers start from."""
        return self.options.seed

    @property
    def is_decided(self) -> bool:
        """Whether it is known yet how many ranks make a pipeline."""
        return self._groups is not None

    @property
    def groups(self) -> Groups:
        """Where this rank is on each axis.

        Raises:
            OptionError: The planner finds the degree, and has not yet.
        """
        if self._groups is None:
            raise OptionError(
                "which rank has which stage is not known yet",
                "pipeline_parallel_degree is 'auto', which the planner decides at the first step",
                "Ask after the first step, or pass smp.init a number",
            )
        return self._groups

    def members(self, axis: Axis) -> tuple[int, ...]:
        """World ranks of this rank's group of an axis, in its order."""
        return tuple(range(self.size)) if axis is Axis.WORLD else self.groups.members(axis)

    def group_of(self, axis: Axis) -> dist.ProcessGroup:
        """This rank's group of an axis."""
        return self.world if axis is Axis.WORLD else self.groups.of(axis)

    def decide(self, pipeline_parallel_degree: int) -> Groups:
        """Make the groups of this degree; collective. Nothing happens if they are there.

        Raises:
            OptionError: The degree does not divide the world, differs on another rank, or is
                another than was decided.
        """
        if self._groups is not None:
            self._check_decided(self._groups, pipeline_parallel_degree)
            return self._groups
        self._check_agreed(pipeline_parallel_degree)
        layout = Layout(
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
        degrees = gather(degree, self.world)
        for rank, other in enumerate(degrees):
            if other != degrees[0]:
                raise OptionError(
                    f"ranks 0 and {rank} have decided for pipelines of {degrees[0]} and {other}",
                    "all ranks are laid out alike",
                    "Decide on one rank and share it",
                )
