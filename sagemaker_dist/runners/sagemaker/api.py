# SPDX-License-Identifier: Apache-2.0
"""The AWS calls of a job: create, describe and stop it, and read its log.

botocore repeats a call if the answer was lost or AWS throttled the call (retries "standard",
docs.aws.amazon.com/sdkref/latest/guide/feature-retry-behavior.html, 2026-11-21). The first
CreateTrainingJob may have created the job although its answer was lost. AWS then refuses the
repeated call with ResourceInUse, because the name is taken. Such a refusal counts as success if the
job of this name matches the request and was created after the first call.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone
from email.utils import parsedate_to_datetime
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final

from sagemaker_dist.errors import SetupError
from sagemaker_dist.packaging import boto_session
from sagemaker_dist.runners.protocol import Description, Request
from sagemaker_dist.runners.sagemaker.api_errors import code_of, translated
from sagemaker_dist.runners.sagemaker.clock import Clock

if TYPE_CHECKING:
    import boto3

LOG_GROUP: Final = "/aws/sagemaker/TrainingJobs"
_ATTEMPTS: Final = 5  # about seven seconds in all
_SLACK: Final = timedelta(seconds=5)  # AWS rounds its times to seconds


@dataclass
class Api:
    """Client for SageMaker's training jobs and for their logs in CloudWatch.

    Attributes:
        given: boto3.Session, or None for a session with boto3's own settings.
        clock: Clock, which tests replace.
    """

    given: boto3.Session | None
    clock: Clock = field(default_factory=Clock)

    @cached_property
    def session(self) -> Any:
        """Return the boto3 session from which the boto3 clients are created."""
        return self.given or boto_session()

    @property
    def region(self) -> str:
        """Return the name of the session's AWS region, or "" if no region is set."""
        return self.session.region_name or ""

    def create(self, request: Request) -> None:
        """Create a training job.

        If the answer of SageMaker is lost, the call is repeated; still only one job is created.

        Raises:
            OptionError: SageMaker refuses the request, or another job has the same name.
            SetupError: SageMaker refuses these credentials, or does not answer.
            JobError: A quota of the account does not allow the job.
        """
        from botocore import exceptions as boto

        name, begun = str(request.get("TrainingJobName", "")), self.clock.monotonic()
        with translated(self._failed(f"start job {name!r}"), name, self.region):
            try:
                self._sagemaker.create_training_job(**request)
            except boto.ClientError as error:
                was_sent_twice = error.response["ResponseMetadata"].get("RetryAttempts", 0) > 0
                is_taken = code_of(error) == "ResourceInUse" and was_sent_twice
                if not (is_taken and self._was_created(request, begun)):
                    raise
            except (boto.ReadTimeoutError, boto.ConnectionClosedError) as error:
                if not self._was_created(request, begun):
                    raise self._unknown(name, error) from error

    def describe(self, name: str) -> tuple[Description, datetime | None]:
        """Return DescribeTrainingJob's answer for a job, and the time of the answer on AWS's clock.

        The time is None if the answer has no HTTP header "Date".
        """
        with translated(self._failed(f"describe job {name!r}"), name, self.region):
            answer = self._sagemaker.describe_training_job(TrainingJobName=name)
        now = answer_time(answer)
        answer.pop("ResponseMetadata", None)
        return answer, now

    def stop(self, name: str) -> None:
        """Request that SageMaker stops the job `name`, by StopTrainingJob."""
        with translated(self._failed(f"stop job {name!r}"), name, self.region):
            self._sagemaker.stop_training_job(TrainingJobName=name)

    def events(self, name: str, start_ms: int, token: str | None) -> Mapping[str, Any]:
        """Return one page of a job's log events from FilterLogEvents of CloudWatch.

        `start_ms` is the time of the first event, in ms since 1970; `token` is the `nextToken` of
        the page before, or None. The page is empty if the log group does not exist yet.
        """
        more = {"nextToken": token} if token else {}
        with translated(f"CloudWatch{self._here} did not return the log of {name!r}", name, ""):
            try:
                page: Mapping[str, Any] = self._logs.filter_log_events(
                    logGroupName=LOG_GROUP,
                    logStreamNamePrefix=f"{name}/",
                    startTime=start_ms,
                    **more,
                )
            except self._logs.exceptions.ResourceNotFoundException:
                return {}
        return page

    @cached_property
    def _sagemaker(self) -> Any:
        return self._client("sagemaker")

    @cached_property
    def s3(self) -> Any:
        """Return boto3's client for S3, where the output of jobs is."""
        return self._client("s3")

    @cached_property
    def _logs(self) -> Any:
        return self._client("logs")

    def _client(self, service: str) -> Any:
        from botocore.config import Config

        retries = {"mode": "standard", "total_max_attempts": _ATTEMPTS}
        return self.session.client(service, config=Config(retries=retries))

    @property
    def _here(self) -> str:
        return f" in region {self.region}" if self.region else ""

    def _failed(self, act: str) -> str:
        return f"SageMaker{self._here} did not {act}"

    def _unknown(self, name: str, error: Exception) -> SetupError:
        return SetupError(
            self._failed(f"confirm that it started job {name!r}"),
            str(error).rstrip("."),
            "Look for the job (aws sagemaker list-training-jobs) before you start it again",
            kind="unconfirmed",
        )

    def _was_created(self, request: Request, begun: float) -> bool:
        """Return whether a job that matches the request was created since the time `begun`.

        `begun` is in seconds on the monotonic clock of this machine.
        """
        from botocore.exceptions import BotoCoreError, ClientError

        try:
            answer = self._sagemaker.describe_training_job(
                TrainingJobName=request["TrainingJobName"]
            )
        except (BotoCoreError, ClientError):
            return False
        now = answer_time(answer) or datetime.now(timezone.utc)
        since = now - timedelta(seconds=self.clock.monotonic() - begun) - _SLACK
        return bool(answer["CreationTime"] >= since) and is_same(request, answer)


def answer_time(answer: Mapping[str, Any]) -> datetime | None:
    """Return the time of an answer on AWS's clock (HTTP header "Date"); None if it is missing."""
    date = answer.get("ResponseMetadata", {}).get("HTTPHeaders", {}).get("date")
    return parsedate_to_datetime(date) if date else None


def is_same(request: Request, described: Description) -> bool:
    """Return whether a job has the image, role, resources and hyperparameters of a request.

    `described` is the job's description.
    """
    image = request.get("AlgorithmSpecification", {})
    expected = {
        "RoleArn": request.get("RoleArn"),
        "ResourceConfig": request.get("ResourceConfig", {}),
        "AlgorithmSpecification": {
            key: image[key] for key in ("TrainingImage", "AlgorithmName") if key in image
        },
    }
    hyperparameters = described.get("HyperParameters") or {}
    return _matches(expected, described) and hyperparameters == (
        request.get("HyperParameters") or {}
    )


def _matches(expected: Any, described: Any) -> bool:
    """Return whether the JSON value `described` has all fields of `expected`, with the same values.

    `described` may have more fields, such as defaults of SageMaker.
    """
    if isinstance(expected, Mapping):
        return isinstance(described, Mapping) and all(
            _matches(value, described.get(key)) for key, value in expected.items()
        )
    if isinstance(expected, list):
        is_list = isinstance(described, list) and len(described) == len(expected)
        return is_list and all(map(_matches, expected, described))
    return bool(expected == described)
