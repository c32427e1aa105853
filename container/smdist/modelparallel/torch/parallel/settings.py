# SPDX-License-Identifier: Apache-2.0
"""Settings of a model that is split: the session's options, and arguments that override them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from sagemaker_dist.contract.model_parallel import ModelParallel
from sagemaker_dist.errors import OptionError, raise_all
from smdist.modelparallel.core.plan import Plan
from smdist.modelparallel.torch.replicas.replicas import FUSION_BYTES
from smdist.modelparallel.torch.session.process_groups import Groups

MIB = 1 << 20

_SAID: Final = {  # values that fit any plan: the planner's choice, and SMP's own defaults
    "microbatches": ("auto", 1),
    "pipeline": ("auto", "interleaved"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Settings that do not change while a model is trained.

    Attributes:
        options: Options of the session.
        plan: Plan with the stages; None if the planner is to find one.
        groups: Process groups; None for those of the session, once the plan is known.
        sharding: Sharding of parameters over replicas: "none", "optimizer" or "full".
        shard_degree: Number of replicas that share the state; None for all.
        bf16: True to compute with sharded parameters in bfloat16.
        seed: Seed of all random numbers.
        fusion_bytes: Size of the buffers in which gradients travel.
        averages: True if gradients are the mean over microbatches, False if they are the sum.
        passes_per_step: Number of steps whose gradients are added up before they are reduced.
        broadcasts_buffers: True if replicas take over the first one's buffers before each step.
        costs: Source of the planner's costs: "auto", "measure" or "estimate".
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
    """Return the options, checked against a plan that the user gives.

    Raises:
        OptionError: Options contradict the plan; all of them.
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
                about=name,
            )
