# SPDX-License-Identifier: Apache-2.0
"""What can start a planned job, behind one protocol."""

from sagemaker_dist.runners.processes import ProcessRunner
from sagemaker_dist.runners.protocol import TERMINAL, Request, Runner
from sagemaker_dist.runners.recording import RecordingRunner

__all__ = ["TERMINAL", "ProcessRunner", "RecordingRunner", "Request", "Runner"]
