# SPDX-License-Identifier: Apache-2.0
"""Checks of a training job by SageMaker's own rules, before anything is uploaded.

limits                  limits of texts, numbers and lists, from boto3's description of the API
terms                   the class `Terms`, which has the arguments of a job to check
service_checks          the arguments, one by one
stopping                time limits, spot instances, warm pools
groups                  instance groups
vpc_config              subnets and security groups
labels                  tags and metrics
hyperparameter_checks   hyperparameters and environment variables
s3_places               S3 URIs
input_checks            input channels
"""

from sagemaker_dist.planning.service.limits import Limit
from sagemaker_dist.planning.service.terms import Terms

__all__ = ["Limit", "Terms"]
