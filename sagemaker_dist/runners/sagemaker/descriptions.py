# SPDX-License-Identifier: Apache-2.0
"""What jobs are doing, asked for no more often than SageMaker likes.

A viewer wants to know ten times a second; DescribeTrainingJob shares its quota with
everybody in the account. So an answer is good for `poll_seconds`, and while SageMaker
cannot answer, the last one is good for some more.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Final

from sagemaker_dist.runners.protocol import TERMINAL, Description
from sagemaker_dist.runners.sagemaker.api import Api
from sagemaker_dist.runners.sagemaker.clock import Clock
from sagemaker_dist.runners.sagemaker.errors import DeniedError, PassingError
from sagemaker_dist.runners.sagemaker.logs import PATIENCE

_TAGGED_SECONDS: Final = 60.0
_SETTLED: Final = timedelta(minutes=5)


@dataclass
class Known:
    """An answer of SageMaker's.

    Attributes:
        now: AWS's time then; None if it did not say.
        at_seconds: The same moment by our clock, or when we last asked in vain.
        num_failures: How often in a row we asked in vain since.
    """

    description: Description
    now: datetime | None
    at_seconds: float
    num_failures: int = 0

    @property
    def is_over(self) -> bool:
        """Whether the job has ended."""
        return self.description["TrainingJobStatus"] in TERMINAL

    @property
    def is_settled(self) -> bool:
        """Whether it ended so long ago that CloudWatch has all it said."""
        end = self.description.get("TrainingEndTime") or self.description.get("LastModifiedTime")
        return bool(self.is_over and self.now and end and self.now - end > _SETTLED)


@dataclass
class Descriptions:
    """Of every job that was asked about, the newest answer."""

    api: Api
    clock: Clock
    poll_seconds: float
    _known: dict[str, Known] = field(default_factory=dict)
    _started: dict[str, float] = field(default_factory=dict)

    def get(self, name: str) -> Known:
        """What SageMaker says of a job, or said within the last `poll_seconds`."""
        known = self._known.get(name)
        if known and self.clock.monotonic() - known.at_seconds < self.poll_seconds:
            return known
        try:
            description, now = self._ask(name)
        except PassingError:
            if known is None or known.num_failures == PATIENCE:
                raise
            known.num_failures += 1
            known.at_seconds = self.clock.monotonic()
            return known
        self._known[name] = Known(description, now, self.clock.monotonic())
        return self._known[name]

    def started(self, name: str) -> None:
        """This job was created just now, by us."""
        self.forget(name)
        self._started[name] = self.clock.monotonic()

    def forget(self, name: str) -> None:
        """Ask SageMaker the next time."""
        self._known.pop(name, None)

    def _ask(self, name: str) -> tuple[Description, datetime | None]:
        """Ask; where a policy goes by tags, a new job has none for some seconds."""
        while True:
            try:
                return self.api.describe(name)
            except DeniedError:
                age = self.clock.monotonic() - self._started.get(name, float("-inf"))
                if age >= _TAGGED_SECONDS:
                    raise
            self.clock.sleep(self.poll_seconds)
