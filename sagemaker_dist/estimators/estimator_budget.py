# SPDX-License-Identifier: Apache-2.0
"""Budget of an estimator's job, from its arguments `max_cost` and `price_per_hour`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from sagemaker_dist.estimators.estimator_facts import known_value, terms
from sagemaker_dist.gathering import cost_terms, plain_count
from sagemaker_dist.packaging import boto_session
from sagemaker_dist.planning import Budget, budget_of

DEFAULT_MAX_RUN: Final = 24 * 60 * 60  # default of SageMaker's SDK 2.257.7


def estimator_budget(given: Mapping[str, Any], session: Any) -> Budget | None:
    """Return the budget of an estimator's job; None without max_cost.

    Args:
        given: Arguments of the estimator, by name. Pipeline variables count as unknown.
        session: Session of SageMaker's SDK, which has the region; None for boto3's own settings.

    Raises:
        OptionError: The budget is wrong, or a price is unknown; all faults are reported together.
        SetupError: A file of prices cannot be read.
    """
    if given.get("max_cost") is None and given.get("price_per_hour") is None:
        return None
    known = {name: known_value(value) for name, value in given.items()}
    for name in ("max_run", "max_cost", "price_per_hour"):
        known[name] = given.get(name)  # a pipeline variable is a fault
    known["instance_count"] = plain_count(known.get("instance_count"))
    known["instance_groups"] = terms(given).instance_groups
    region = getattr(session, "boto_region_name", None) or boto_session().region_name
    return budget_of(cost_terms(known, region=region))


def with_price(
    environment: dict[str, str] | None, before: Mapping[str, str], budget: Budget | None
) -> dict[str, str] | None:
    """Return an environment with the variables of a budget, and without those of an earlier one.

    Args:
        environment: Environment variables of the job, of the user and of the earlier budget.
        before: Variables of the earlier budget; one that the user has changed since then stays.
        budget: Budget of the next job; None without max_cost.
    """
    price = {} if budget is None else budget.environment
    if not price and not before:
        return environment
    others = {**(environment or {})}
    for name, value in before.items():
        if others.get(name) == value:
            del others[name]
    return {**others, **price}
