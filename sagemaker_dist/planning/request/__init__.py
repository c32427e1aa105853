# SPDX-License-Identifier: Apache-2.0
"""Building of the CreateTrainingJob request from the options of a `TrainingJob`."""

from sagemaker_dist.planning.request.create_request import Resolved, training_request
from sagemaker_dist.planning.request.inputs import FileSystemInput, S3Input, input_channels
from sagemaker_dist.planning.request.training_options import InstanceGroup, TrainingOptions

__all__ = [
    "FileSystemInput",
    "InstanceGroup",
    "Resolved",
    "S3Input",
    "TrainingOptions",
    "input_channels",
    "training_request",
]
