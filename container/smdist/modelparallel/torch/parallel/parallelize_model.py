# SPDX-License-Identifier: Apache-2.0
"""`smp.parallelize`: from a model, and perhaps a plan and an example, to a `Parallel`."""

from __future__ import annotations

from typing import Any

from torch import nn

from smdist.modelparallel.core.plan import Plan
from smdist.modelparallel.torch import session
from smdist.modelparallel.torch.parallel.first_step import prepare_for
from smdist.modelparallel.torch.parallel.parallel import Parallel
from smdist.modelparallel.torch.parallel.settings import Settings, checked
from smdist.modelparallel.torch.program.batch import Batch
from smdist.modelparallel.torch.replicas.replicas import FUSION_BYTES
from smdist.modelparallel.torch.session.process_groups import Groups


def parallelize(
    model: nn.Module, plan: Plan | None = None, example: Any = None, *,
    groups: Groups | None = None, sharding: str | None = None, shard_degree: int | None = None,
    bf16: bool | None = None, seed: int | None = None, fusion_bytes: int = FUSION_BYTES,
    costs: str = "auto",
) -> Parallel:  # fmt: skip
    """Put the stages of a model on the ranks; collective over the world.

    SMP has no such function: there, only DistributedModel makes a model parallel, with the options
    of the job. Arguments that are left out have the values of `smp.init`.

    Args:
        plan: Plan to cut the model by, for instance from `smp.plan`. Default: the plan that rank 0
            finds and prints.
        example: Batch of one replica; with it the model is cut at once, without it in its first
            step.
        groups: Process groups of the ranks. Default: the session's.
        sharding: "none" (each replica has all of its stages), "optimizer" or "full" (FSDP2).
        shard_degree: Number of replicas that share the state. Default: all.
        bf16: True to compute with sharded parameters in bfloat16.
        seed: Seed of random numbers, and of weights of modules made on meta.
        fusion_bytes: Size of the buffers in which gradients travel between replicas.
        costs: "measure", "estimate" or "auto"; see `smp.plan`.

    Raises:
        OptionError: All faults of the plan for this model, these ranks and options.
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
