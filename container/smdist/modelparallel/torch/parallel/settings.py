# SPDX-License-Identifier: Apache-2.0
"""How a model is to be split and run: the session's options, and what the call said otherwise."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from sagemaker_dist.contract.model_parallel import ModelParallel
from sagemaker_dist.errors import OptionError, raise_all
from smdist.modelparallel.core.plan import Plan
from smdist.modelparallel.torch.groups import Groups
from smdist.modelparallel.torch.replicas.replicas import FUSION_BYTES

MIB = 1 << 20

_SAID: Final = {  # what no plan contradicts: the planner's choice, and SMP's own defaults
    "microbatches": ("auto", 1),
    "pipeline": ("auto", "interleaved"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """All that does not change while a model is trained.

    Attributes:
        options: The session's.
        plan: Where stages come from; None where they are to be planned.
        groups: Who is where; None where the session's hold, once the plan is known.
        sharding: Of parameters over replicas: "none", "optimizer" or "full".
        shard_degree: Over how many; None for all.
        bf16: Whether sharded parameters are computed with in bfloat16.
        seed: Of all random numbers.
        fusion_bytes: Of the buffers that gradients travel in.
        averages: Whether gradients are the mean over microbatches, not the sum.
        passes_per_step: Steps whose gradients are added up before they are reduced.
        broadcasts_buffers: Whether replicas take the buffers of the first before each step.
        costs: Where the planner's costs come from: "auto", "measure" or "estimate".
    """

    options: ModelParallel
    plan: Plan | None = None
    groups: Groups | None = None
    sharding: str = "none"
    shard_degree: int | None = None
    bf16: bool = False
    seed: int = 0
    fusion_bytes: int = FUSION_BYTES
    averages: bool = True
    passes_per_step: int = 1
    broadcasts_buffers: bool = True
    costs: str = "auto"


def checked(options: ModelParallel, plan: Plan | None) -> ModelParallel:
    """The options; a plan that the user gives decides some, so these say the same or nothing.

    Raises:
        OptionError: One says otherwise; all that do.
    """
    raise_all(_contradictions(plan, options) if plan is not None else ())
    return options


def _contradictions(plan: Plan, options: ModelParallel) -> Iterator[OptionError]:
    decided = {"microbatches": plan.num_microbatches, "pipeline": plan.schedule}
    for name, value in decided.items():
        option = getattr(options, name)
        if option not in (*_SAID[name], value):
            yield OptionError(
                f"{name} is {option!r} beside a plan",
                f"the plan decides it, and has {value!r}",
                f"Leave {name} out, or plan anew with it",
            )
