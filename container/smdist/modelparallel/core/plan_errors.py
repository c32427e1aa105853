# SPDX-License-Identifier: Apache-2.0
"""Errors of a plan, and of a request to the planner."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from sagemaker_dist.errors import OptionError, OptionErrors


class PlanError(OptionError):
    """Error of a plan that cannot be made as requested, or that does not match its model."""


class PlanMemoryError(PlanError):
    """Error of a plan that needs more memory than a rank may use.

    Attributes:
        least_bytes: Memory in bytes that would be enough on each rank.
    """

    default_kind = "memory"
    least_bytes = 0

    def as_dict(self) -> dict[str, Any]:
        """Return the fields by name, for JSON, with `least_bytes`."""
        return {**super().as_dict(), "least_bytes": self.least_bytes}


class PlanErrors(OptionErrors, PlanError):  # noqa: N818  it holds several errors
    """Several errors of one plan, in the order in which they were found."""


def raise_faults(faults: Iterable[OptionError]) -> None:
    """Raise all errors of a plan at once.

    One error is raised as PlanError, several errors are raised as PlanErrors. If there are
    no errors, nothing is raised.
    """
    flat = tuple(part for fault in faults for part in getattr(fault, "faults", (fault,)))
    if len(flat) == 1:
        one = flat[0]
        if isinstance(one, PlanError):
            raise one
        raise PlanError(one.what, one.why, one.hint, one.about, one.kind)
    if flat:
        raise PlanErrors(flat)
