# SPDX-License-Identifier: Apache-2.0
"""What SageMaker itself asks of a training job, checked before anything is uploaded.

limits      what its service model says of a name, a number or a list
terms       what a job asks for besides its code and its data
faults      the arguments, one by one
stopping    time limits, spot instances, warm pools
groups      instance groups
network     subnets, security groups, and who needs them
labels      tags and metrics
options     hyperparameters and the environment
places      what lies in S3
channels    the inputs
"""

from sagemaker_dist.planning.service.limits import Limit
from sagemaker_dist.planning.service.terms import Terms

__all__ = ["Limit", "Terms"]
