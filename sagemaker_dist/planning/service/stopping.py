# SPDX-License-Identifier: Apache-2.0
"""Checks of time limits, spot instances and warm pools."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from sagemaker_dist.errors import OptionError
from sagemaker_dist.planning.service.limits import Limit, integer, number_faults
from sagemaker_dist.planning.service.terms import Terms

_DAY: Final = 24 * 60 * 60
# "The maximum value is 28 days": StoppingCondition in the API reference, 2026-11-21.
_MOST_RUN: Final = 28 * _DAY
_DEFAULT_RUN: Final = _DAY  # default of SageMaker's SDK 2.257.7


def stopping_faults(terms: Terms) -> Iterator[OptionError]:
    """Yield a fault if time limits contradict each other, or exceed SageMaker's limits."""
    for name, shape in (
        ("max_wait", "MaxWaitTimeInSeconds"),
        ("max_retry_attempts", "MaximumRetryAttempts"),
        ("keep_alive_period_in_seconds", "KeepAlivePeriodInSeconds"),
    ):
        yield from number_faults(name, getattr(terms, name), terms.limit(shape))
    least = terms.limit("MaxRuntimeInSeconds").least
    yield from number_faults("max_run", terms.max_run, Limit(least=least, most=_MOST_RUN))
    yield from _wait_faults(terms)
    if terms.use_spot_instances and terms.keep_alive_period_in_seconds:
        yield OptionError(
            f"keep_alive_period_in_seconds is {terms.keep_alive_period_in_seconds!r}"
            " with use_spot_instances",
            "SageMaker has no warm pools of spot instances",
            "Leave one of them out",
            about="keep_alive_period_in_seconds",
            kind="conflict",
        )


def _wait_faults(terms: Terms) -> Iterator[OptionError]:
    run, wait = integer(terms.max_run), integer(terms.max_wait)
    run = _DEFAULT_RUN if run is None and "max_run" not in terms.passed else run
    if terms.use_spot_instances and "max_wait" not in terms.passed:
        yield OptionError(
            "use_spot_instances is set without max_wait",
            "SageMaker needs the longest time for waiting for spot instances and running",
            "Pass max_wait, in seconds, of at least max_run",
            about="use_spot_instances",
            kind="missing",
        )
    elif (
        "max_wait" in terms.passed
        and not {"use_spot_instances", "max_retry_attempts"} & terms.passed
    ):
        yield OptionError(
            "max_wait is set without use_spot_instances",
            "only a job on spot instances, or with max_retry_attempts, can wait",
            "Pass use_spot_instances=True, or leave max_wait out",
            about="max_wait",
            kind="missing",
        )
    elif wait is not None and run is not None and wait < run:
        yield OptionError(
            f"max_wait is {wait} and max_run is {run}",
            "max_wait is the longest time for waiting and running together",
            f"Pass a max_wait of at least {run}",
            about="max_wait",
            kind="conflict",
        )
