# SPDX-License-Identifier: Apache-2.0
"""Collection of the facts from which the budget of a job follows; prices are read from files."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from sagemaker_dist.catalog import LOCAL, LOCAL_PROCESS, price_of
from sagemaker_dist.planning.budget import CostTerms
from sagemaker_dist.planning.service.terms import is_groups

COST: Final = ("max_cost", "price_per_hour")


def cost_terms(given: Mapping[str, Any], *, region: str | None) -> CostTerms:
    """Return the facts from which the budget of a job follows.

    Args:
        given: Options of the job by name; None if left out or a pipeline variable.
        region: AWS region of the job; None if unknown.

    Raises:
        SetupError: A file of prices cannot be read, or has another form.
    """
    hosts = _hosts(given)
    names = [name for name, _ in hosts or ()] if given.get("max_cost") is not None else []
    found = {name: price_of(name, region) for name in names if region is not None}
    return CostTerms(
        max_cost=given.get("max_cost"),
        price_per_hour=given.get("price_per_hour"),
        hosts=hosts,
        prices={name: price for name, price in found.items() if price is not None},
        region=region,
        is_local=given.get("instance_type") in {LOCAL_PROCESS, *LOCAL},
        max_run=given.get("max_run"),
        keep_alive_seconds=given.get("keep_alive_period_in_seconds"),
        training_plan=given.get("training_plan"),
        is_spot=bool(given.get("use_spot_instances")),
        has_groups=given.get("instance_groups") is not None,
    )


def _hosts(given: Mapping[str, Any]) -> list[tuple[str, int]] | None:
    groups = given.get("instance_groups")
    if groups is not None:
        if not groups or not is_groups(groups):
            return None
        hosts = [(each["InstanceType"], each["InstanceCount"]) for each in groups]
    else:
        hosts = [(given.get("instance_type"), given.get("instance_count"))]
    return hosts if all(map(_is_known, hosts)) else None


def _is_known(host: tuple[Any, Any]) -> bool:
    name, count = host
    return isinstance(name, str) and type(count) is int and count > 0
