# SPDX-License-Identifier: Apache-2.0
"""Training jobs on Amazon SageMaker, by boto3 alone, without SageMaker's SDK.

        sagemaker_runner.py   the protocol: start, describe, stop, logs
        descriptions.py       state of jobs, requested at most once in `poll_seconds`
        logs.py               CloudWatch's events -> segments of output, each once
        api.py                the four calls, and the identity of a created job
        api_errors.py         boto3's errors -> DistErrors with hints
        clock.py              time, which tests replace

boto3 and botocore are imported at the first call, not with the package.
"""

from sagemaker_dist.runners.sagemaker.clock import Clock
from sagemaker_dist.runners.sagemaker.sagemaker_runner import SageMakerRunner

__all__ = ["Clock", "SageMakerRunner"]
