# SPDX-License-Identifier: Apache-2.0
"""`SageMakerRunner`: runs jobs on Amazon SageMaker."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from math import isfinite
from typing import TYPE_CHECKING, Final

from sagemaker_dist.errors import OptionError, require
from sagemaker_dist.runners.protocol import Description, Request
from sagemaker_dist.runners.sagemaker.api import LOG_GROUP, Api
from sagemaker_dist.runners.sagemaker.api_errors import NoSuchJobError
from sagemaker_dist.runners.sagemaker.clock import Clock
from sagemaker_dist.runners.sagemaker.descriptions import Descriptions, Known
from sagemaker_dist.runners.sagemaker.logs import Follower, Tail
from sagemaker_dist.runners.sagemaker.output_data import OutputData, open_output_data

if TYPE_CHECKING:
    import boto3

_ENDING: Final = "Stopping"


@dataclass
class SageMakerRunner:
    """Runner for Amazon SageMaker, in the account and region of a session.

    A job keeps running when the process that started it ends or is interrupted, as with SageMaker's
    SDK. `stop` stops it.

    Attributes:
        session: boto3.Session; None for boto3's own settings (AWS_PROFILE, AWS_DEFAULT_REGION and
            so on), which are read at the first call.
        poll_seconds: Time in seconds between two calls to AWS for the state of a job, and between
            two reads of the logs.
        clock: Clock, which tests replace.

    Raises:
        OptionError: poll_seconds is not a positive number.
    """

    session: boto3.Session | None = None
    poll_seconds: float = 5.0
    clock: Clock = field(default_factory=Clock, repr=False, kw_only=True)
    _api: Api = field(init=False, repr=False)
    _jobs: Descriptions = field(init=False, repr=False)

    def __post_init__(self) -> None:
        require(
            isfinite(self.poll_seconds) and self.poll_seconds > 0,
            what=f"poll_seconds is {self.poll_seconds!r}",
            why="poll_seconds is a time in seconds, between two calls to AWS, and must be above 0",
            hint="Pass a number greater than 0",
            about="poll_seconds",
        )
        self._api = Api(self.session, self.clock)
        self._jobs = Descriptions(self._api, self.clock, self.poll_seconds)

    def start(self, request: Request, *, attended: bool = False) -> str:  # noqa: ARG002 - see the class
        """Create the job of a request (fields of CreateTrainingJob), and return the job's name.

        `attended` has no effect: the job always keeps running when this process ends.

        Raises:
            OptionError: SageMaker refuses the request, or another job has the same name.
            SetupError: SageMaker refuses these credentials, or does not answer.
            JobError: A quota of the account does not allow the job.
        """
        self._api.create(request)
        name = str(request["TrainingJobName"])
        self._jobs.started(name)
        return name

    def release(self, name: str) -> None:
        """Do nothing: a job on SageMaker keeps running when this process ends."""

    def exists(self, name: str) -> bool:
        """Return whether a job of this name was ever started in this account and region."""
        try:
            self._jobs.get(name)
        except NoSuchJobError:
            return False
        return True

    def describe(self, name: str) -> Description:
        """Return DescribeTrainingJob's answer, at most `poll_seconds` old.

        While SageMaker does not answer, the last description is returned, for some minutes.

        Raises:
            JobError: The job does not exist.
            SetupError: SageMaker refuses these credentials, or does not answer.
        """
        return dict(self._jobs.get(name).description)

    def stop(self, name: str, *, now: bool = False) -> None:  # noqa: ARG002 - see below
        """Request that a job stops, and return without waiting; do nothing if the job has ended.

        SageMaker sends SIGTERM to the hosts and, 120 seconds later, SIGKILL
        (API_StopTrainingJob.html, 2026-11-21). A job cannot be stopped faster, so `now` has no
        effect.
        """
        try:
            self._api.stop(name)
        except OptionError:  # SageMaker refuses if the job does not run or does not exist
            self._jobs.forget(name)
            known = self._jobs.get(name)
            if not known.is_over and known.description["TrainingJobStatus"] != _ENDING:
                raise
        self._jobs.forget(name)

    def logs(self, name: str, *, follow: bool = False, new_only: bool = False) -> Iterator[str]:
        r"""Yield the output of all hosts as lines that end in \n or \r, in the order of time.

        With `follow`, continue until the job ends, and yield an empty string whenever there is no
        new output. With `new_only`, leave out the output before this call.
        """
        follower = Follower(
            tail=self._tail(name, new_only),
            is_over=lambda: self._jobs.get(name).is_over,
            is_settled=lambda: self._jobs.get(name).is_settled,
            poll_seconds=self.poll_seconds,
            clock=self.clock,
        )
        if new_only:
            yield from ("" for segment in follower.read() if follow and not segment)
        if follow:
            yield from follower.follow()
        else:
            yield from filter(None, follower.read())

    def output_data(self, name: str) -> AbstractContextManager[OutputData | None]:
        """Open the archive with the output data of a job; None if there is none (yet).

        SageMaker writes it to S3 when the job has ended, also if it has failed.

        Raises:
            JobError: The job does not exist.
            SetupError: AWS refuses these credentials, or does not answer.
        """
        return open_output_data(self._api.s3, self.describe(name), self._api.region)

    def logs_at(self, name: str) -> str:
        """Return a text that names the region, log group and streams of the job in CloudWatch."""
        where = f" in region {self._api.region}" if self._api.region else ""
        return f"CloudWatch{where}, log group {LOG_GROUP}, streams {name}/*"

    def _tail(self, name: str, new_only: bool) -> Tail:
        known = self._jobs.get(name)
        return Tail(name, partial(self._api.events, name), _since_ms(known, new_only))


def _since_ms(known: Known, new_only: bool) -> int:
    """Return the time from which the log is read, in ms since 1970.

    With `new_only`, the result is the current time on AWS's clock; else the time when the job was
    created.
    `known` is the job's description.
    """
    created: datetime = known.description["CreationTime"]
    since = max(known.now or created, created) if new_only else created
    return round(since.timestamp() * 1000)
