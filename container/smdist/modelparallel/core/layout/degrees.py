# SPDX-License-Identifier: Apache-2.0
"""Layout of a training: parallel degrees, sharding, checkpointing, microbatches and schedule."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from smdist.modelparallel.core.plan.number_format import number, way

REPLICAS: Final = "replicas"  # family of layouts that only replicate the model
CHECKPOINTED: Final = {
    "every_8th": "every eighth layer",
    "selective": "every second layer",
    "full": "every layer",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """Combination of all choices that place one training on the ranks of a cluster.

    Attributes:
        data: Number of replicas.
        pipeline: Number of ranks of one pipeline.
        tensor: Number of ranks that split each layer.
        sharding: "none", "optimizer" or "full", as in `ModelParallel`.
        shard_degree: Replicas that divide one copy of the state; 1 without sharding.
        checkpointing: Layers that are checkpointed: "none", "every_8th", "selective" (every
            second one) or "full" (all).
        offload: True if activations are kept in the host's memory.
        reduction: Time at which sharded gradients are reduced: "step", after the last microbatch,
            or "microbatch", in each backward pass.
        microbatch: Samples of one microbatch.
        num_microbatches: Microbatches of one replica in a step.
        schedule: Name of the pipeline's schedule; "1f1b" also for one stage.
        virtual_stages: Stages on each rank.
    """

    data: int = 1
    pipeline: int = 1
    tensor: int = 1
    sharding: str = "none"
    shard_degree: int = 1
    checkpointing: str = "none"
    offload: bool = False
    reduction: str = "step"
    microbatch: int = 1
    num_microbatches: int = 1
    schedule: str = "1f1b"
    virtual_stages: int = 1

    @property
    def world_size(self) -> int:
        """Number of ranks."""
        return self.data * self.pipeline * self.tensor

    @property
    def samples(self) -> int:
        """Samples of one step over all replicas."""
        return self.data * self.microbatch * self.num_microbatches

    @property
    def is_hybrid(self) -> bool:
        """True if there are several sharded copies of the state."""
        return self.sharding != "none" and 1 < self.shard_degree < self.data

    @property
    def reduces_often(self) -> bool:
        """True if gradients are reduced to shards in each backward pass.

        The prediction does so for one stage with all state in shards. In pipelines, it counts whole
        gradients until the end of the step.
        """
        is_alone = self.pipeline == 1 and self.shard_degree > 1
        return self.reduction == "microbatch" and self.sharding == "full" and is_alone

    @property
    def family(self) -> str:
        """Name of the layout's family: the kinds of parallelism that it combines."""
        parts = []
        if self.sharding != "none":
            kind = "full shards" if self.sharding == "full" else "optimizer shards"
            parts.append(f"hybrid {kind}" if self.is_hybrid else kind)
        if self.tensor > 1:
            parts.append("tensor")
        if self.pipeline > 1:
            parts.append("pipeline")
        return " + ".join(parts) or REPLICAS

    def options(self) -> dict[str, int | str | bool]:
        """Return the options of `ModelParallel` that run this layout, without those at defaults.

        Checkpointing is no option: a saved plan has it, or the script calls
        `smp.set_activation_checkpointing`.
        """
        found: dict[str, int | str | bool] = {
            "pipeline_parallel_degree": self.pipeline,
            "microbatches": self.num_microbatches,
        }
        if self.tensor > 1:
            found["tensor_parallel_degree"] = self.tensor
        if self.pipeline > 1:
            found["pipeline"] = self.schedule
        if self.virtual_stages > 1:
            found["virtual_stages"] = self.virtual_stages
        if self.sharding != "none":
            found["sharding"] = self.sharding
        if self.is_hybrid:
            found["shard_degree"] = self.shard_degree
        if self.reduces_often:
            found["gradient_reduction"] = self.reduction
        if self.offload:
            found["offload_activations"] = True
        return found

    def __str__(self) -> str:
        parts = [number(self.data, "replica")]
        if self.sharding != "none":
            what = "all state" if self.sharding == "full" else "optimizer state"
            parts.append(f"{what} in shards over {number(self.shard_degree, 'rank')}")
        if self.reduces_often:
            parts.append("gradients reduced in each microbatch")
        if self.tensor > 1:
            parts.append(f"layers split over {number(self.tensor, 'rank')}")
        if self.pipeline > 1:
            how = way(self.schedule, self.virtual_stages, None)
            parts.append(f"pipelines of {number(self.pipeline, 'rank')}, {how}")
        count = number(self.num_microbatches, "microbatch")
        parts.append(f"{count} of {number(self.microbatch, 'sample')}")
        if self.checkpointing != "none":
            parts.append(f"{CHECKPOINTED[self.checkpointing]} checkpointed")
        if self.offload:
            parts.append("activations in the host's memory")
        return ", ".join(parts)
