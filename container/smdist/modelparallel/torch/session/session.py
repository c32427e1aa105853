# SPDX-License-Identifier: Apache-2.0
"""Session that smp.init makes: options, position of this rank, and process groups."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import torch.distributed as dist

from sagemaker_dist.contract.model_parallel import ModelParallel
from sagemaker_dist.errors import OptionError
from smdist.modelparallel.core.rank_layout import Axis, RankLayout
from smdist.modelparallel.torch.session.object_collectives import all_gather_object
from smdist.modelparallel.torch.session.process_groups import Groups, make_groups


@dataclass(slots=True, kw_only=True, eq=False)
class Session:
    """State of model parallelism on this rank, from smp.init to its end.

    Attributes:
        options: Options of smp.init, joined with the options of the job.
        world: Default process group of torch.distributed.
        message_group: Second group of all ranks. Only smp.send, recv_from and broadcast use it.
        hosts: Number of each rank's host, by rank.
        local_rank: Number of this rank on its host.
        local_size: Number of ranks on this host.
        is_ours: True if smp.init started torch.distributed.
    """

    options: ModelParallel
    world: dist.ProcessGroup = field(repr=False)
    message_group: dist.ProcessGroup = field(repr=False)
    hosts: tuple[int, ...]
    local_rank: int
    local_size: int
    is_ours: bool
    _groups: Groups | None = field(default=None, repr=False)

    @property
    def rank(self) -> int:
        """World rank of this process."""
        return self.world.rank()

    @property
    def size(self) -> int:
        """Number of ranks in the world."""
        return self.world.size()

    @property
    def seed(self) -> int:
        """Seed of random numbers in the training run: for initialisation, dropout and so on."""
        return self.options.seed

    @property
    def is_decided(self) -> bool:
        """True once the pipeline degree is known and the process groups are made."""
        return self._groups is not None

    @property
    def groups(self) -> Groups:
        """Process groups of this rank.

        Raises:
            OptionError: The planner has not chosen the pipeline degree yet.
        """
        if self._groups is None:
            raise OptionError(
                "the process groups do not exist yet",
                "pipeline_parallel_degree is 'auto', and the planner chooses it in the first step",
                "Use groups after the first step, or pass smp.init a pipeline_parallel_degree",
                about="pipeline_parallel_degree",
                kind="too_early",
            )
        return self._groups

    def members(self, axis: Axis) -> tuple[int, ...]:
        """Return the world ranks of this rank's group of an axis (such as PP), in group order."""
        return tuple(range(self.size)) if axis is Axis.WORLD else self.groups.members(axis)

    def group_of(self, axis: Axis) -> dist.ProcessGroup:
        """Return this rank's process group of an axis, such as its pipeline for PP."""
        return self.world if axis is Axis.WORLD else self.groups.of(axis)

    def decide(
        self, pipeline_parallel_degree: int, tensor_parallel_degree: int | None = None
    ) -> Groups:
        """Make the process groups for some degrees, and return them; all ranks must call this.

        If the groups exist already, they must have the same pipeline degree.

        Args:
            pipeline_parallel_degree: Number of ranks in a pipeline.
            tensor_parallel_degree: Number of ranks that split each layer. The options of the
                session have it afterwards. None for the degree in these options.

        Raises:
            OptionError: The degrees do not divide the number of ranks, the pipeline degree differs
                between ranks, or it differs from the degree of the existing groups.
        """
        if self._groups is not None:
            self._check_decided(self._groups, pipeline_parallel_degree)
            return self._groups
        self._check_agreed(pipeline_parallel_degree)
        if tensor_parallel_degree is not None:
            self.options = replace(self.options, tensor_parallel_degree=tensor_parallel_degree)
        layout = RankLayout(
            size=self.size,
            pipeline_parallel_degree=pipeline_parallel_degree,
            tensor_parallel_degree=self.options.tensor_parallel_degree,
            placement_strategy=self.options.placement_strategy,
        )
        self._groups = make_groups(layout)
        return self._groups

    def _check_decided(self, groups: Groups, degree: int) -> None:
        """Raise OptionError if the existing groups have another pipeline degree."""
        if groups.pp_size != degree:
            raise OptionError(
                f"pipeline_parallel_degree {degree} is requested",
                f"the groups of this session have pipeline_parallel_degree {groups.pp_size}",
                f"Use a plan with {groups.pp_size} ranks in a pipeline, or start another job",
                about="pipeline_parallel_degree",
                kind="conflict",
            )

    def _check_agreed(self, degree: int) -> None:
        """Raise OptionError if ranks pass different pipeline degrees; all ranks must call this."""
        degrees = all_gather_object(degree, self.world)
        for rank, other in enumerate(degrees):
            if other != degrees[0]:
                raise OptionError(
                    f"pipeline_parallel_degree is {degrees[0]} on rank 0, {other} on rank {rank}",
                    "all ranks make the same process groups",
                    "Choose the degree on one rank, and send it to the others with smp.broadcast",
                    about="pipeline_parallel_degree",
                    kind="difference",
                )
