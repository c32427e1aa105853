# SPDX-License-Identifier: Apache-2.0
"""Data of a plan: its fields, and values that are computed from them."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Final

from smdist.modelparallel.core.note import Note
from smdist.modelparallel.core.placement import Tie
from smdist.modelparallel.core.plan.fingerprint import Fingerprint, digest
from smdist.modelparallel.core.plan.forecast import Forecast, Rejected
from smdist.modelparallel.core.schedule import make_schedule
from smdist.modelparallel.core.schedule.actions import Schedule

_WHOLE: Final = ("none", None, "step", ())  # no shards and no checkpoints
_UNSPLIT: Final = (1, False)  # whole layers, and activations on the device


@dataclass(frozen=True, kw_only=True)  # no slots: the class has cached properties
class PlanData:
    """Fields of a plan, unchecked; the subclass `Plan` checks, explains, reads and writes them.

    Attributes:
        model: Class of the model, shown in reports.
        pipeline_parallel_degree: Number of ranks of one pipeline, p.
        data_parallel_degree: Number of parallel pipelines, each with a batch of its own.
        schedule: Name of the schedule.
        batch_size: Number of samples of one pipeline in one step.
        num_microbatches: Number of microbatches of a batch; divides `batch_size`.
        stages: Names of each stage's units (undivided modules). There are p times `virtual_stages`
            stages.
        active_microbatches: Largest number of microbatches in flight, for the schedule
            "interleaved"; None for others.
        virtual_stages: Number of stages on each rank.
        sharding: State that replicas divide among each other: "none", "optimizer" or "full", as in
            `ModelParallel`. With "none", the options of the job decide.
        shard_degree: Number of replicas that divide one copy of the state; None for all replicas.
        gradient_reduction: Time at which sharded gradients are reduced: "step" or "microbatch".
        checkpointed: Names of modules whose activations are computed again in backward passes.
        tensor_parallel_degree: Number of ranks that split each layer.
        offload_activations: True if activations are in the host's memory between the passes. False
            leaves the choice to the options of the job.
        opened: Modules that were divided, so that the modules inside them are units.
        ties: Parameters that several stages hold.
        forecast: Predicted time and memory of a step; None if they were not computed.
        notes: Notes on what limits the speed, and how the plan could become faster.
        rejected: Alternatives that were not chosen, with reasons.
        fingerprint: Classes and digests of the model's units, to recognize the model.
    """

    model: str
    pipeline_parallel_degree: int
    data_parallel_degree: int
    schedule: str
    batch_size: int
    num_microbatches: int
    stages: tuple[tuple[str, ...], ...]
    active_microbatches: int | None = None
    virtual_stages: int = 1
    sharding: str = "none"
    shard_degree: int | None = None
    gradient_reduction: str = "step"
    checkpointed: tuple[str, ...] = ()
    tensor_parallel_degree: int = 1
    offload_activations: bool = False
    opened: tuple[str, ...] = ()
    ties: tuple[Tie, ...] = ()
    forecast: Forecast | None = None
    notes: tuple[Note, ...] = ()
    rejected: tuple[Rejected, ...] = ()
    fingerprint: Fingerprint

    @property
    def world_size(self) -> int:
        """Number of ranks of all pipelines."""
        degrees = self.pipeline_parallel_degree * self.data_parallel_degree
        return degrees * self.tensor_parallel_degree

    @property
    def microbatch_size(self) -> int:
        """Number of samples in one microbatch."""
        return self.batch_size // self.num_microbatches

    @cached_property
    def actions(self) -> Schedule:
        """Schedule of one pipeline: the actions of each rank, in order.

        Raises:
            OptionError: The schedule does not exist, or does not support the plan's numbers of
                ranks, microbatches and stages.
        """
        return make_schedule(
            self.schedule,
            num_ranks=self.pipeline_parallel_degree,
            num_microbatches=self.num_microbatches,
            virtual_stages=self.virtual_stages,
            active_microbatches=self.active_microbatches,
        )

    @cached_property
    def stage_of(self) -> dict[str, int]:
        """Stage of each unit (undivided module), by the unit's name."""
        return {unit: stage for stage, units in enumerate(self.stages) for unit in units}

    def rank(self, pipeline: int, pipeline_rank: int) -> int:
        """Return the world rank of rank `pipeline_rank` of a pipeline.

        Ranks that split a layer count as one.

        Args:
            pipeline: Number of the pipeline, from 0.
            pipeline_rank: Rank within the pipeline, from 0.
        """
        return pipeline * self.pipeline_parallel_degree + pipeline_rank

    def replicas(self, pipeline_rank: int) -> tuple[int, ...]:
        """Return the ranks, one in each pipeline, that hold the same stages.

        Args:
            pipeline_rank: Rank within each pipeline, from 0.
        """
        return tuple(self.rank(each, pipeline_rank) for each in range(self.data_parallel_degree))

    @cached_property
    def basis(self) -> str:
        """Digest of the plan's degrees, batch, schedule, stages, shards, offload and ties.

        The digest changes when one of them is edited. A forecast stores the digest, which shows
        whether the forecast is still valid. Ties are the parameters that several stages hold.
        """
        decided = (self.schedule, self.active_microbatches, self.virtual_stages, self.opened)
        tied = [(tie.parameter, tie.stages) for tie in self.ties]
        sizes = (self.pipeline_parallel_degree, self.data_parallel_degree, self.batch_size)
        parts = [repr((decided, sizes, self.num_microbatches, self.stages, tied))]
        shards = (self.sharding, self.shard_degree, self.gradient_reduction, self.checkpointed)
        if shards != _WHOLE:
            parts.append(repr(shards))
        more = (self.tensor_parallel_degree, self.offload_activations)
        return digest(parts if more == _UNSPLIT else [*parts, repr(more)])

    @property
    def is_stale(self) -> bool:
        """True if the plan was edited so that its forecast is no longer valid."""
        return self.forecast is not None and self.forecast.basis != self.basis
