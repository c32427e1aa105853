# SPDX-License-Identifier: Apache-2.0
"""Settings of a parallel model: options of the session, and arguments of `smp.parallelize`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Final

import torch

from sagemaker_dist.contract.model_parallel import ModelParallel
from sagemaker_dist.errors import OptionError, raise_all, require
from smdist.modelparallel.core.plan import Plan
from smdist.modelparallel.core.simulate import FUSION_BYTES
from smdist.modelparallel.torch.replicas.replicas import half_dtype
from smdist.modelparallel.torch.session.process_groups import Groups

MIB = 1 << 20
DEFAULT_HORIZON: Final = 4  # layers, as in SMP v1

_ANY_PLAN: Final = {  # values that fit any plan: "auto", and the defaults of SMP v1
    "microbatches": ("auto", 1),
    "pipeline": ("auto", "interleaved"),
    "sharding": ("auto", "none"),
    "shard_degree": (None,),
    "gradient_reduction": ("auto",),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Settings of one parallel model; they are constant during training.

    Attributes:
        options: Options of the session.
        plan: Plan with the stages and the schedule; None if the planner finds one.
        groups: Process groups of the ranks; None for the groups of the session.
        sharding: Sharding of each stage over its replicas: "none", "optimizer" (the optimizer state
            is sharded), "full" (parameters, too), or "auto" until there is a plan.
        shard_degree: Number of replicas over which one copy of the state is sharded; None for all.
        gradient_reduction: Time at which sharded gradients are reduced: "step" or "microbatch", or
            "auto" until there is a plan.
        bf16: True to compute in bfloat16, with float32 master weights.
        fp16: True to compute in float16, with float32 master weights and a scaled loss.
        offload_horizon: Largest number of layers whose activations are on the device at once; the
            others are in the host's memory. None to leave all on the device.
        offloads_optimizer: True to keep optimizer state and master weights in the host's memory.
        seed: Seed of all random numbers.
        fusion_bytes: Largest size of a buffer, in bytes, in which gradients are averaged.
        averages: True to average gradients over microbatches, False to sum them.
        passes_per_step: Number of calls of the step function for one optimizer step. The gradients
            of these calls are summed, and then reduced over replicas.
        broadcasts_buffers: True to copy the buffers of replica 0 to all replicas before each step.
        costs: Source of the planner's times: "auto", "measure" or "estimate".
        converted_dtype: Dtype to which the model's tensors are converted before the model is split;
            None if they stay as they are. With sharding, FSDP2 converts gathered parameters
            instead.
    """

    options: ModelParallel
    plan: Plan | None = None
    groups: Groups | None = None
    sharding: str = "none"
    shard_degree: int | None = None
    gradient_reduction: str = "auto"
    bf16: bool = False
    fp16: bool = False
    offload_horizon: int | None = None
    offloads_optimizer: bool = False
    seed: int = 0
    fusion_bytes: int = FUSION_BYTES
    averages: bool = True
    passes_per_step: int = 1
    broadcasts_buffers: bool = True
    costs: str = "auto"
    converted_dtype: torch.dtype | None = field(init=False, default=None)

    def __post_init__(self) -> None:
        require(
            not (self.bf16 and self.fp16),
            what="both bf16 and fp16 are True",
            why="a model computes in one of the two dtypes",
            hint="Leave out bf16 or fp16",
            about="bf16",
            kind="conflict",
        )
        half = half_dtype(bf16=self.bf16, fp16=self.fp16) if self.sharding == "none" else None
        object.__setattr__(self, "converted_dtype", half)


def with_plan(settings: Settings, plan: Plan) -> Settings:
    """Return the settings with the shards and the offload of a plan, or with their own without.

    Args:
        settings: Settings of the parallel model.
        plan: Plan by which the model is split.

    Raises:
        OptionError: The model is in 16 bits, and the plan's shards need it in float32; or the model
            is in float32, and without shards it has to be in 16 bits.
    """
    if plan.offload_activations and settings.offload_horizon is None:
        settings = replace(settings, offload_horizon=DEFAULT_HORIZON)
    takes = plan.sharding != "none" or settings.sharding == "auto"
    if takes and (settings.bf16 or settings.fp16):
        _check_converted(settings, plan)
    own = settings.gradient_reduction
    if not takes:
        return replace(settings, gradient_reduction="step" if own == "auto" else own)
    return replace(
        settings,
        sharding=plan.sharding,
        shard_degree=settings.shard_degree or plan.shard_degree,
        gradient_reduction=plan.gradient_reduction if own == "auto" else own,
    )


def _check_converted(settings: Settings, plan: Plan) -> None:
    """Check that the model's dtype is what the plan's sharding needs, with 16 bits.

    Raises:
        OptionError: It is not, because the model was converted, or not, before there was a plan.
    """
    is_converted = settings.converted_dtype is not None
    require(
        is_converted == (plan.sharding == "none"),
        what=f"the plan has sharding={plan.sharding!r}, and the option sharding is"
        f" {settings.sharding!r}",
        why="with bf16 or fp16, a model without shards is converted to 16 bits before the plan is"
        " read, and a model with shards is not",
        hint=f"Pass sharding={plan.sharding!r}",
        about="sharding",
        kind="conflict",
    )


def offload_horizon(options: ModelParallel) -> int | None:
    """Return the horizon of activation offload in the options; None without offload."""
    if not options.offload_activations:
        return None
    return options.activation_loading_horizon or DEFAULT_HORIZON


def checked(options: ModelParallel, plan: Plan | None) -> ModelParallel:
    """Check the options of the session against a plan; return the options.

    Args:
        options: Options of the session.
        plan: Plan that the user passed. Without a plan (None), nothing is checked.

    Raises:
        OptionError: Options contradict the plan; the error lists all faults.
    """
    raise_all(_contradictions(plan, options) if plan is not None else ())
    return options


def _contradictions(plan: Plan, options: ModelParallel) -> Iterator[OptionError]:
    """Yield an error for each option whose value differs from the plan's value."""
    decided: dict[str, int | str | None] = {
        "microbatches": plan.num_microbatches, "pipeline": plan.schedule
    }  # fmt: skip
    if plan.sharding != "none":
        shards = plan.shard_degree or plan.data_parallel_degree
        decided |= {
            "sharding": plan.sharding, "shard_degree": shards,
            "gradient_reduction": plan.gradient_reduction,
        }  # fmt: skip
    tensor = plan.tensor_parallel_degree
    if tensor not in (1, options.tensor_parallel_degree):
        yield OptionError(
            f"tensor_parallel_degree is {options.tensor_parallel_degree}, and a plan is given",
            f"the plan splits each layer over {tensor} ranks",
            f"Pass tensor_parallel_degree={tensor} to smp.init, or make another plan",
            about="tensor_parallel_degree",
            kind="conflict",
        )
    for name, value in decided.items():
        option = getattr(options, name)
        if option not in (*_ANY_PLAN[name], value):
            yield OptionError(
                f"{name} is {option!r}, and a plan is given",
                f"the plan sets {name} to {value!r}",
                f"Leave {name} out, or make another plan with this value",
                about=name,
                kind="conflict",
            )
