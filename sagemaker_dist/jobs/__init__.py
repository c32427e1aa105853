# SPDX-License-Identifier: Apache-2.0
"""Training jobs with boto3, without SageMaker's SDK: the class `TrainingJob`, and job files."""

from sagemaker_dist.jobs.job_file import read_job_file
from sagemaker_dist.jobs.training_job import TrainingJob

__all__ = ["TrainingJob", "read_job_file"]
