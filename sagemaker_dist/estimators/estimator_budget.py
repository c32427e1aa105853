# SPDX-License-Identifier: Apache-2.0
"""Budget of an estimator's job, from its arguments `max_cost` and `price_per_hour`."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final

from sagemaker_dist.estimators.estimator_facts import known_value, terms
from sagemaker_dist.gathering import COST, cost_terms, plain_count
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


def limited(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of an estimator, with `max_run` at most what max_cost pays for.

    Raises what `estimator_budget` raises.
    """
    budget = estimator_budget(given, given.get("sagemaker_session"))
    if budget is None:
        return {**given}
    return {**given, "max_run": budget.limit(given.get("max_run") or DEFAULT_MAX_RUN)}


class BudgetedJob:
    """Part of an Estimator: its time limit and its price, which may change between two jobs.

    Attributes:
        max_cost: Most that a job may cost, in USD; None for no limit.
        price_per_hour: Price of one instance for an hour, in USD; None to look it up.
    """

    max_cost: float | None
    price_per_hour: float | None
    sagemaker_session: Any
    environment: Any
    _max_run: Any
    _price: Mapping[str, str] = MappingProxyType({})  # in the environment, from the last job

    @property
    def max_run(self) -> Any:
        """Longest duration of the job in seconds; with max_cost, at most what it pays for."""
        budget = self._budget
        return self._max_run if budget is None else budget.limit(self._max_run)

    @max_run.setter
    def max_run(self, value: Any) -> None:
        self._max_run = value

    @property
    def _budget(self) -> Budget | None:
        if self.max_cost is None and self.price_per_hour is None:
            return None
        names = ("instance_type", "instance_count", "instance_groups", "use_spot_instances")
        more = ("keep_alive_period_in_seconds", "training_plan", *COST)
        given = {name: getattr(self, name, None) for name in (*names, *more)}
        return estimator_budget({**given, "max_run": self._max_run}, self.sagemaker_session)

    def _set_price(self) -> None:
        """Set the environment variable of the price; remove that of an earlier budget."""
        budget = self._budget
        price = {} if budget is None else budget.environment
        if price or self._price:
            others = {**(self.environment or {})}
            for name, value in self._price.items():
                if others.get(name) == value:  # else the user has changed it
                    del others[name]
            self.environment = {**others, **price}
        self._price = price
