# SPDX-License-Identifier: Apache-2.0
"""Budget of a ModelTrainer's jobs, from its fields `max_cost` and `price_per_hour`."""

from __future__ import annotations

from typing import Any

from sagemaker_dist.errors import OptionError
from sagemaker_dist.gathering import COST, cost_terms
from sagemaker_dist.packaging import boto_session
from sagemaker_dist.planning import Budget, budget_of
from sagemaker_dist.trainer.trainer_facts import groups_of, instance_of, known_value


def trainer_budget(trainer: Any) -> Budget | None:
    """Return the budget of a ModelTrainer's jobs; None without max_cost.

    Args:
        trainer: ModelTrainer of this package, or of SageMaker, which has no budget.

    Raises:
        OptionError: The budget is wrong, or a price is unknown; all faults are reported together.
        SetupError: A file of prices cannot be read.
    """
    cost = {name: getattr(trainer, name, None) for name in COST}
    if not any(value is not None for value in cost.values()):
        return None
    if trainer.training_mode.name == "LOCAL_CONTAINER":
        raise OptionError(
            "max_cost is set with Mode.LOCAL_CONTAINER",
            "SageMaker's SDK runs these containers, and it has no time limit for them",
            "Leave max_cost and price_per_hour out, or use an estimator with"
            " instance_type='local_process'",
            about="max_cost",
            kind="unsupported",
        )
    compute = trainer.compute
    kind, count = instance_of(compute)
    groups = [
        {
            "InstanceGroupName": known_value(each.instance_group_name),
            "InstanceType": known_value(each.instance_type),
            "InstanceCount": known_value(each.instance_count),
        }
        for each in groups_of(compute)
    ]
    stopping = trainer.stopping_condition
    given = {
        **cost,
        "instance_type": kind,
        "instance_count": count,
        "instance_groups": groups or None,
        "max_run": getattr(stopping, "max_runtime_in_seconds", None),
        "use_spot_instances": _field(compute, "enable_managed_spot_training"),
        "keep_alive_period_in_seconds": _field(compute, "keep_alive_period_in_seconds"),
        "training_plan": _field(compute, "training_plan_arn"),
    }
    session = trainer.sagemaker_session
    region = getattr(session, "boto_region_name", None) or boto_session().region_name
    return budget_of(cost_terms(given, region=region))


def _field(compute: Any, name: str) -> Any:
    return known_value(getattr(compute, name, None))
