# SPDX-License-Identifier: Apache-2.0
"""Reading of the user's files, this machine and boto3's models, for the checks in `planning`.

The checks only use the facts that are collected here.
"""

from sagemaker_dist.gathering.arguments import (
    add_runtime_metrics,
    plain_count,
    service_terms,
    with_parameters,
)
from sagemaker_dist.gathering.cost_terms import COST, cost_terms
from sagemaker_dist.gathering.plan_file import find_plan
from sagemaker_dist.gathering.service_model import is_known_to_boto3, service_limits
from sagemaker_dist.gathering.user_code import find_obstacle, find_source, path_exists

__all__ = [
    "COST",
    "add_runtime_metrics",
    "cost_terms",
    "find_obstacle",
    "find_plan",
    "find_source",
    "is_known_to_boto3",
    "path_exists",
    "plain_count",
    "service_limits",
    "service_terms",
    "with_parameters",
]
