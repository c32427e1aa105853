# SPDX-License-Identifier: Apache-2.0
"""Check that no training job has the name of a job that is about to be submitted."""

from __future__ import annotations

from typing import Any

from botocore.exceptions import BotoCoreError, ClientError
from sagemaker.workflow.pipeline_context import PipelineSession

from sagemaker_dist.runners.sagemaker.api_errors import name_is_taken


def refuse_taken_name(session: Any, job_name: str | None) -> None:
    """Raise an error if a training job of this name exists in the account and region.

    SageMaker refuses such a job too, but only after the SDK has uploaded its code: of a job that
    SageMaker's own launcher starts, to the S3 key of the first job's code, which is then lost.
    Without the permission to describe jobs, nothing is checked.

    Args:
        session: Session of SageMaker's SDK that will submit the job.
        job_name: Name of the job; None if the SDK generates it.

    Raises:
        OptionError: The name is taken.
    """
    if not isinstance(job_name, str) or isinstance(session, PipelineSession):
        return
    try:
        found = session.sagemaker_client.describe_training_job(TrainingJobName=job_name)
    except (BotoCoreError, ClientError):
        return
    if isinstance(found, dict) and found.get("TrainingJobName") == job_name:
        raise name_is_taken(job_name, session.boto_region_name)
