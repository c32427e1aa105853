# SPDX-License-Identifier: Apache-2.0
"""Cache of jobs' descriptions, so that SageMaker is not called too often.

A viewer reads the state ten times a second, but the quota of DescribeTrainingJob is
shared by the whole account. So an answer is used for `poll_seconds`, and longer while
SageMaker cannot answer.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Final

from sagemaker_dist.runners.protocol import TERMINAL, Description
from sagemaker_dist.runners.sagemaker.api import Api
from sagemaker_dist.runners.sagemaker.api_errors import DeniedError, PassingError
from sagemaker_dist.runners.sagemaker.clock import Clock
from sagemaker_dist.runners.sagemaker.logs import PATIENCE

_TAGGED_SECONDS: Final = 60.0
_SETTLED: Final = timedelta(minutes=5)


@dataclass
class Known:
    """An answer of SageMaker.

    Attributes:
        now: AWS's time of the answer, or None if it had none.
        at_seconds: Time of the last call on the local clock, failed calls included.
        num_failures: Failed calls in a row since the answer.
    """

    description: Description
    now: datetime | None
    at_seconds: float
    num_failures: int = 0

    @property
    def is_over(self) -> bool:
        """Return whether the job has ended."""
        return self.description["TrainingJobStatus"] in TERMINAL

    @property
    def is_settled(self) -> bool:
        """Return whether the job ended so long ago that CloudWatch has all its output."""
        end = self.description.get("TrainingEndTime") or self.description.get("LastModifiedTime")
        return bool(self.is_over and self.now and end and self.now - end > _SETTLED)


@dataclass
class Descriptions:
    """The newest answer for every job."""

    api: Api
    clock: Clock
    poll_seconds: float
    _known: dict[str, Known] = field(default_factory=dict)
    _started: dict[str, float] = field(default_factory=dict)

    def get(self, name: str) -> Known:
        """Return SageMaker's description of a job, at most `poll_seconds` old."""
        known = self._known.get(name)
        if known and self.clock.monotonic() - known.at_seconds < self.poll_seconds:
            return known
        try:
            description, now = self._describe(name)
        except PassingError:
            if known is None or known.num_failures == PATIENCE:
                raise
            known.num_failures += 1
            known.at_seconds = self.clock.monotonic()
            return known
        self._known[name] = Known(description, now, self.clock.monotonic())
        return self._known[name]

    def started(self, name: str) -> None:
        """Record that this process has just created the job."""
        self.forget(name)
        self._started[name] = self.clock.monotonic()

    def forget(self, name: str) -> None:
        """Drop the answer, so that the next `get` calls SageMaker."""
        self._known.pop(name, None)

    def _describe(self, name: str) -> tuple[Description, datetime | None]:
        """Call SageMaker, and repeat while a new job's tags are not yet visible to a policy by
        tags.
        """
        while True:
            try:
                return self.api.describe(name)
            except DeniedError:
                age = self.clock.monotonic() - self._started.get(name, float("-inf"))
                if age >= _TAGGED_SECONDS:
                    raise
            self.clock.sleep(self.poll_seconds)
