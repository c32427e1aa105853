# SPDX-License-Identifier: Apache-2.0
"""Cache of jobs' descriptions, so that SageMaker is not called too often.

A viewer reads the state of a job ten times a second, but all users of an account share the quota
of DescribeTrainingJob. So an answer is used again for `poll_seconds`, and longer while SageMaker
does not answer.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Final

from sagemaker_dist.runners.protocol import TERMINAL, Description
from sagemaker_dist.runners.sagemaker.api import Api
from sagemaker_dist.runners.sagemaker.api_errors import DeniedError, PassingError
from sagemaker_dist.runners.sagemaker.clock import Clock
from sagemaker_dist.runners.sagemaker.logs import MAX_FAILURES

_TAGGED_SECONDS: Final = 60.0
_SETTLED: Final = timedelta(minutes=5)


@dataclass
class Known:
    """The newest known description of a job, with the times of the calls.

    Attributes:
        description: DescribeTrainingJob's answer.
        now: Time of the answer on AWS's clock, or None if the answer contained no time.
        at_seconds: Time of the last call, failed or not, on the local monotonic clock.
        num_failures: Number of calls that failed after this answer.
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
    """Cache of the newest description of every job.

    Attributes:
        poll_seconds: Longest time for which a description is used again.
    """

    api: Api
    clock: Clock
    poll_seconds: float
    _known: dict[str, Known] = field(default_factory=dict)
    _started: dict[str, float] = field(default_factory=dict)

    def get(self, name: str) -> Known:
        """Return SageMaker's description of a job, at most `poll_seconds` old.

        While SageMaker does not answer, the last description is returned, for some minutes. After
        that, SetupError is raised.

        Raises:
            JobError: The job does not exist.
            SetupError: SageMaker refuses these credentials, or does not answer.
        """
        known = self._known.get(name)
        if known and self.clock.monotonic() - known.at_seconds < self.poll_seconds:
            return known
        try:
            description, now = self._describe(name)
        except PassingError:
            if known is None or known.num_failures == MAX_FAILURES:
                raise
            known.num_failures += 1
            known.at_seconds = self.clock.monotonic()
            return known
        self._known[name] = Known(description, now, self.clock.monotonic())
        return self._known[name]

    def started(self, name: str) -> None:
        """Record that this process has just created the job.

        For a minute after that, `get` repeats a call to SageMaker if access is denied.
        """
        self.forget(name)
        self._started[name] = self.clock.monotonic()

    def forget(self, name: str) -> None:
        """Remove the cached description of a job, so that the next `get` calls SageMaker."""
        self._known.pop(name, None)

    def _describe(self, name: str) -> tuple[Description, datetime | None]:
        """Return DescribeTrainingJob's answer, and its time on AWS's clock or None.

        For a job that this process has just created, the call is repeated for a minute while access
        is denied: an IAM policy may allow access by the job's tags, which AWS applies with a delay.
        """
        while True:
            try:
                return self.api.describe(name)
            except DeniedError:
                age = self.clock.monotonic() - self._started.get(name, float("-inf"))
                if age >= _TAGGED_SECONDS:
                    raise
            self.clock.sleep(self.poll_seconds)
