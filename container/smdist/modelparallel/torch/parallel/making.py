# SPDX-License-Identifier: Apache-2.0
"""`smp.parallelize`: from a model, and perhaps a plan and an example, to a `Parallel`."""

from __future__ import annotations

from typing import Any

from torch import nn

from smdist.modelparallel.core.plan import Plan
from smdist.modelparallel.torch import session
from smdist.modelparallel.torch.batch import Batch
from smdist.modelparallel.torch.groups import Groups
from smdist.modelparallel.torch.parallel.first import prepare_for
from smdist.modelparallel.torch.parallel.parallel import Parallel
from smdist.modelparallel.torch.parallel.settings import Settings, checked
from smdist.modelparallel.torch.replicas.replicas import FUSION_BYTES


def parallelize(
    model: nn.Module, plan: Plan | None = None, example: Any = None, *,
    groups: Groups | None = None, sharding: str | None = None, shard_degree: int | None = None,
    bf16: bool | None = None, seed: int | None = None, fusion_bytes: int = FUSION_BYTES,
    costs: str = "auto",
) -> Parallel:  # fmt: skip
    """Put the stages of a model on the ranks; collective over the world.

    SMP has no such function: there, DistributedModel alone makes models parallel, and the options
    of the job are the only ones. What is left out here is what `smp.init` was given.

    Args:
        plan: How to cut it, such as `smp.plan` makes it; the default is what rank 0 finds, which
            it prints.
        example: The batch of one replica: the model is cut at once. Without, it is cut by its
            first step.
        groups: Who is where; the default is the session's.
        sharding: "none" (each replica has all of its stages), "optimizer" or "full" (FSDP2).
        shard_degree: Replicas that share; the default is all.
        bf16: Whether sharded parameters are computed with in bfloat16.
        seed: What random numbers and weights made on meta start from.
        fusion_bytes: Of the buffers that gradients of replicas travel in.
        costs: "measure", "estimate" or "auto", as of `smp.plan`.

    Raises:
        OptionError: All that is wrong with the plan for this model, these ranks and options.
    """
    options = checked(session.current().options, plan)
    settings = Settings(
        options=options, plan=plan, groups=groups, fusion_bytes=fusion_bytes, costs=costs,
        sharding=options.sharding if sharding is None else sharding,
        shard_degree=options.shard_degree if shard_degree is None else shard_degree,
        bf16=options.bf16 if bf16 is None else bf16,
        seed=options.seed if seed is None else seed,
    )  # fmt: skip
    made = Parallel(model, settings)
    if example is not None:
        prepare_for(made._state, lambda: Batch.of(example))
    return made
