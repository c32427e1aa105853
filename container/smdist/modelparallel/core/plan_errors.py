# SPDX-License-Identifier: Apache-2.0
"""Errors of a plan, and of a request to the planner."""

from __future__ import annotations

from collections.abc import Iterable

from sagemaker_dist.errors import OptionError, OptionErrors


class PlanError(OptionError):
    """Error of a plan that cannot be made as requested, or that does not match its model."""


class PlanErrors(OptionErrors, PlanError):  # noqa: N818  it holds several errors
    """Several errors of one plan, in the order in which they were found."""


def raise_faults(faults: Iterable[OptionError]) -> None:
    """Raise all errors of a plan at once.

    No error raises nothing. One error is raised as PlanError, several are raised as PlanErrors.
    """
    flat = tuple(part for fault in faults for part in getattr(fault, "faults", (fault,)))
    if len(flat) == 1:
        one = flat[0]
        raise (
            one if isinstance(one, PlanError) else PlanError(one.what, one.why, one.hint, one.about)
        )
    if flat:
        raise PlanErrors(flat)
