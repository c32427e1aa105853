# SPDX-License-Identifier: Apache-2.0
"""What the checks of `planning` need to know of this machine and of boto3's models."""

from sagemaker_dist.gathering.arguments import as_count, as_terms, with_our_metrics, with_parameters
from sagemaker_dist.gathering.places import find_obstacle, find_source, is_there
from sagemaker_dist.gathering.plans import find_plan
from sagemaker_dist.gathering.service import is_known_to_boto3, service_limits

__all__ = [
    "as_count",
    "as_terms",
    "find_obstacle",
    "find_plan",
    "find_source",
    "is_known_to_boto3",
    "is_there",
    "service_limits",
    "with_our_metrics",
    "with_parameters",
]
