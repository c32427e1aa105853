# SPDX-License-Identifier: Apache-2.0
"""Checks of the options for replicas and shards; all faults are reported at once."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from sagemaker_dist.errors import OptionError, closest
from smdist.modelparallel.core.layout.training_needs import SHARDINGS
from smdist.modelparallel.core.schedule.actions import Schedule

REDUCTIONS: Final = ("step", "microbatch")


def sharding_faults(replicas: int, sharding: str, shard_degree: int | None) -> list[OptionError]:
    """Return an error for each option that contradicts others or the number of replicas.

    Args:
        replicas: Number of replicas.
        sharding, shard_degree: Options of `Replicas`.
    """
    faults = []
    if sharding not in SHARDINGS:
        names = ", ".join(SHARDINGS)
        why = "the option selects what is sharded over replicas"
        faults.append(
            OptionError(f"sharding is {sharding!r}", why, f"Use one of {names}", about="sharding")
        )
    if sharding == "none" and shard_degree is not None:
        why = "sharding is 'none', so every replica has a whole copy"
        hint = "Leave shard_degree out, or set sharding to 'optimizer' or 'full'"
        faults.append(
            OptionError(f"shard_degree is {shard_degree!r}", why, hint, about="shard_degree")
        )
    elif shard_degree is not None and (shard_degree < 1 or replicas % shard_degree):
        why = f"the {replicas} replicas are divided into groups of shard_degree replicas"
        hint = f"Use one of {', '.join(str(n) for n in _divisors(replicas))}"
        faults.append(
            OptionError(f"shard_degree is {shard_degree!r}", why, hint, about="shard_degree")
        )
    return faults


def reduction_faults(reduction: str, sharding: str, schedule: Schedule) -> Iterator[OptionError]:
    """Yield an error for each reason why gradients cannot be reduced as the option says.

    Args:
        reduction: Option `gradient_reduction` of `Replicas`.
        sharding: Option `sharding` of `Replicas`.
        schedule: Schedule of a step.
    """
    what, about = f"gradient_reduction is {reduction!r}", "gradient_reduction"
    if reduction not in REDUCTIONS:
        why, hint = "no such time of reduction exists", closest(str(reduction), REDUCTIONS)
        yield OptionError(what, why, hint, about=about, kind="unknown")
    elif reduction == "microbatch" and sharding == "none":
        why = "without sharding, gradients of replicas are summed once per step"
        hint = "Leave it out, or set sharding to 'optimizer' or 'full'"
        yield OptionError(what, why, hint, about=about, kind="conflict")
    elif reduction == "microbatch" and schedule.splits_backward:
        why = "the schedule computes gradients of weights apart from backward passes"
        hint = "Leave it out, or choose another schedule, such as pipeline='1f1b'"
        yield OptionError(what, why, hint, about=about, kind="conflict")


def _divisors(number: int) -> list[int]:
    """Return the divisors of a number, the smallest first."""
    return [each for each in range(1, number + 1) if number % each == 0]
