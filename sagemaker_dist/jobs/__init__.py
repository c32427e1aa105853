# SPDX-License-Identifier: Apache-2.0
"""The front door for Boto3: a training job without SageMaker's SDK."""

from sagemaker_dist.jobs.job_file import read_job_file
from sagemaker_dist.jobs.training_job import TrainingJob

__all__ = ["TrainingJob", "read_job_file"]
