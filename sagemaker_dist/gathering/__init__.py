# SPDX-License-Identifier: Apache-2.0
"""Facts about this machine, the user's files and boto3's models, for the checks in `planning`."""

from sagemaker_dist.gathering.arguments import (
    add_runtime_metrics,
    plain_count,
    service_terms,
    with_parameters,
)
from sagemaker_dist.gathering.plan_file import find_plan
from sagemaker_dist.gathering.service_model import is_known_to_boto3, service_limits
from sagemaker_dist.gathering.user_code import find_obstacle, find_source, is_there

__all__ = [
    "add_runtime_metrics",
    "find_obstacle",
    "find_plan",
    "find_source",
    "is_known_to_boto3",
    "is_there",
    "plain_count",
    "service_limits",
    "service_terms",
    "with_parameters",
]
