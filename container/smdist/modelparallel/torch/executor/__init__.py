# SPDX-License-Identifier: Apache-2.0
"""Execution of a pipeline step on one rank: forward and backward passes of its own stages."""

from smdist.modelparallel.torch.executor.executor import Executor
from smdist.modelparallel.torch.executor.p2p import MemoryCounter, PeakCounter
from smdist.modelparallel.torch.executor.rank_step import (
    Arguments,
    Call,
    Feed,
    PassedOn,
)
from smdist.modelparallel.torch.executor.split_backward import Roots
from smdist.modelparallel.torch.executor.step_errors import (
    Fault,
    StepError,
    StepInterruptedError,
)
from smdist.modelparallel.torch.executor.step_resources import OnEvent, StageHooks

__all__ = [
    "Arguments",
    "Call",
    "Executor",
    "Fault",
    "Feed",
    "MemoryCounter",
    "OnEvent",
    "PassedOn",
    "PeakCounter",
    "Roots",
    "StageHooks",
    "StepError",
    "StepInterruptedError",
]
