# SPDX-License-Identifier: Apache-2.0
"""Classes that start, watch and stop training jobs; each implements the protocol `Runner`."""

from sagemaker_dist.runners.local import LocalRunner
from sagemaker_dist.runners.protocol import TERMINAL, Request, Runner
from sagemaker_dist.runners.recording import RecordingRunner
from sagemaker_dist.runners.sagemaker import SageMakerRunner

__all__ = ["TERMINAL", "LocalRunner", "RecordingRunner", "Request", "Runner", "SageMakerRunner"]
