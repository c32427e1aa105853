# SPDX-License-Identifier: Apache-2.0
"""A training job on Amazon SageMaker, by boto3 alone: SageMaker's SDK is not needed.

    runner.py        the protocol: start, describe, stop, logs
    descriptions.py  what a job is doing, asked for once in `poll_seconds`
    logs.py          CloudWatch's events -> segments of output, each once
    api.py           the four calls, and whether a job is the one we asked for
    errors.py        what boto3 raises -> our errors, with their mends
    clock.py         time, which tests replace

boto3 and botocore are imported at the first call, not with the package.
"""

from sagemaker_dist.runners.sagemaker.clock import Clock
from sagemaker_dist.runners.sagemaker.runner import SageMakerRunner

__all__ = ["Clock", "SageMakerRunner"]
