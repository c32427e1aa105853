# SPDX-License-Identifier: Apache-2.0
"""What can be wrong with a plan, or with what is asked of the planner."""

from __future__ import annotations

from collections.abc import Iterable

from sagemaker_dist.errors import OptionError, OptionErrors


class PlanError(OptionError):
    """A plan cannot be made as asked for, or does not fit its model."""


class PlanErrors(OptionErrors, PlanError):  # noqa: N818  several of them
    """Several faults of one plan, in the order they were found."""


def raise_faults(faults: Iterable[OptionError]) -> None:
    """Raise every fault of a plan at once: none passes, one is itself, several are PlanErrors."""
    flat = tuple(part for fault in faults for part in getattr(fault, "faults", (fault,)))
    if len(flat) == 1:
        one = flat[0]
        raise one if isinstance(one, PlanError) else PlanError(one.what, one.why, one.mend)
    if flat:
        raise PlanErrors(flat)
