# SPDX-License-Identifier: Apache-2.0
"""The executor: a plan's schedule, run by one rank over its own stages."""

from smdist.modelparallel.torch.executor.errors import (
    Fault,
    StepError,
    StepInterruptedError,
)
from smdist.modelparallel.torch.executor.executor import Executor
from smdist.modelparallel.torch.executor.feed import Arguments, Call, Feed, PassedOn, Roots
from smdist.modelparallel.torch.executor.ledger import Count, Ledger
from smdist.modelparallel.torch.executor.step import OnEvent, StageHooks

__all__ = [
    "Arguments",
    "Call",
    "Count",
    "Executor",
    "Fault",
    "Feed",
    "Ledger",
    "OnEvent",
    "PassedOn",
    "Roots",
    "StageHooks",
    "StepError",
    "StepInterruptedError",
]
