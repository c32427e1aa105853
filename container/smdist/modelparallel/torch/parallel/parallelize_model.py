# SPDX-License-Identifier: Apache-2.0
"""Function `smp.parallelize`, which returns a `Parallel` for a user's model."""

from __future__ import annotations

from typing import Any

from torch import nn

from smdist.modelparallel.core.plan import Plan
from smdist.modelparallel.core.simulate import FUSION_BYTES
from smdist.modelparallel.torch import session
from smdist.modelparallel.torch.parallel.first_step import prepare_for
from smdist.modelparallel.torch.parallel.parallel import Parallel
from smdist.modelparallel.torch.parallel.precision import inputs_of
from smdist.modelparallel.torch.parallel.settings import Settings, checked, offload_horizon
from smdist.modelparallel.torch.program.batch import Batch
from smdist.modelparallel.torch.session.process_groups import Groups


def parallelize(
    model: nn.Module, plan: Plan | None = None, example: Any = None, *,
    groups: Groups | None = None, sharding: str | None = None, shard_degree: int | None = None,
    gradient_reduction: str | None = None, bf16: bool | None = None,
    fp16: bool | None = None, seed: int | None = None,
    fusion_bytes: int = FUSION_BYTES, costs: str = "auto",
) -> Parallel:  # fmt: skip
    """Split a model into stages on several ranks; all ranks must call this.

    In SMP v1, only DistributedModel does this. Arguments that are left out have the values of
    `smp.init`.

    Args:
        model: Model to split; the result is used in its place.
        plan: Plan with the stages and the schedule, for instance from `smp.plan`. By default rank 0
            finds a plan and prints it.
        example: Batch of one replica, with which the model is split now. Without an example, the
            first step splits the model.
        groups: Process groups of the ranks. Default: the groups of the session.
        sharding: Sharding of each stage over its replicas: "none" (each replica has the whole
            stage), "optimizer" (the optimizer state is sharded), "full" (parameters, too, as by
            FSDP2) or "auto" (the plan has it).
        shard_degree: Number of replicas over which one copy of the state is sharded. Default: all
            replicas.
        gradient_reduction: Time at which sharded gradients are reduced: "step", "microbatch" or
            "auto"; see `ModelParallel`.
        bf16: True to compute in bfloat16, with float32 master weights.
        fp16: True to compute in float16, with float32 master weights and a scaled loss. Like bf16
            without sharding, it needs a `smp.DistributedOptimizer`.
        seed: Seed of random numbers, and of the weights of modules made on the meta device.
        fusion_bytes: Size of the buffers, in bytes, in which gradients of replicas are reduced.
        costs: Source of the planner's times: "measure", "estimate" or "auto"; see `smp.plan`.

    Raises:
        OptionError: The plan does not fit the model, the ranks or the options. All faults are
            reported at once.
    """
    options = checked(session.current().options, plan)
    settings = Settings(
        options=options, plan=plan, groups=groups, fusion_bytes=fusion_bytes, costs=costs,
        sharding=options.sharding if sharding is None else sharding,
        shard_degree=options.shard_degree if shard_degree is None else shard_degree,
        gradient_reduction=(
            options.gradient_reduction if gradient_reduction is None else gradient_reduction
        ),
        bf16=options.bf16 if bf16 is None else bf16,
        fp16=options.fp16 if fp16 is None else fp16,
        offload_horizon=offload_horizon(options),
        offloads_optimizer=options.offload_optimizer,
        seed=options.seed if seed is None else seed,
    )  # fmt: skip
    made = Parallel(model, settings)
    if example is not None:
        prepare_for(made._state, lambda: Batch.of(inputs_of(example, settings)))
    return made
