# SPDX-License-Identifier: Apache-2.0
"""From the options of a training job to the CreateTrainingJob request: pure."""

from sagemaker_dist.planning.request.build import Settled, training_request
from sagemaker_dist.planning.request.inputs import FileSystemInput, S3Input, input_channels
from sagemaker_dist.planning.request.options import InstanceGroup, TrainingOptions

__all__ = [
    "FileSystemInput",
    "InstanceGroup",
    "S3Input",
    "Settled",
    "TrainingOptions",
    "input_channels",
    "training_request",
]
