# SPDX-License-Identifier: Apache-2.0
"""Training jobs on Amazon SageMaker, with boto3, without SageMaker's SDK.

        sagemaker_runner.py   the runner: start, describe, stop, logs
        descriptions.py       cache of job descriptions, so that AWS is called less often
        logs.py               CloudWatch's log events -> lines of output, each once
        api.py                the four AWS calls; finds out whether a job was really created
        api_errors.py         boto3's errors -> DistErrors with hints
        clock.py              clock, which tests replace

boto3 and botocore are imported at the first call, not with the package.
"""

from sagemaker_dist.runners.sagemaker.clock import Clock
from sagemaker_dist.runners.sagemaker.sagemaker_runner import SageMakerRunner

__all__ = ["Clock", "SageMakerRunner"]
