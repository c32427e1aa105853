# SPDX-License-Identifier: Apache-2.0
"""A SageMaker session whose jobs run on this machine, as processes or containers.

SageMaker's SDK asks its session for everything; this one answers without
Compose, AWS credentials, a region or the network.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any, Final

import boto3
from sagemaker.exceptions import UnexpectedStatusException
from sagemaker.local import LocalSession as SageMakerLocalSession
from sagemaker.local.local_session import LocalSagemakerClient

from sagemaker_dist.errors import JobError, OptionError
from sagemaker_dist.estimators.sdk import as_given
from sagemaker_dist.planning import LocalSource, plan_local_job
from sagemaker_dist.planning.local_channel import FILE_SYSTEMS
from sagemaker_dist.planning.local_job import REGION
from sagemaker_dist.runners import TERMINAL, LocalRunner, Runner
from sagemaker_dist.runners.protocol import Description
from sagemaker_dist.runners.viewer import watch

ROLE: Final = "arn:aws:iam::000000000000:role/local_process"
_NO_TELEMETRY: Final = {
    "SchemaVersion": "1.0",
    "SageMaker": {"PythonSDK": {"Modules": {"TelemetryOptOut": True}}},
}


class LocalJobError(JobError, UnexpectedStatusException):  # type: ignore[misc]  # untyped SDK
    """A job failed; also what SageMaker's SDK would have raised."""

    def __init__(self, what: str, why: str, mend: str) -> None:
        UnexpectedStatusException.__init__(self, why, ["Completed", "Stopped"], "Failed")
        self.args = (what, why, mend)
        self.what, self.why, self.mend = what, why, mend


class LocalClient(LocalSagemakerClient):  # type: ignore[misc]  # SageMaker's SDK is untyped
    """The part of SageMaker's API that training jobs need, over a runner."""

    def __init__(self, session: LocalSession, runner: Runner) -> None:
        super().__init__(session)
        self.runner = runner
        self.attended = False
        self.asked = ""
        self.source: LocalSource | None = None

    def create_training_job(self, **request: Any) -> dict[str, str]:
        """Start the job; where its code lies is known here alone, the API has no place for it."""
        if self.source is not None:
            request["LocalSource"] = self.source.request()
        if self.sagemaker_session.file_systems:
            request[FILE_SYSTEMS] = self.sagemaker_session.file_systems
        self.asked = request["TrainingJobName"]
        with as_given():
            self.runner.start(request, attended=self.attended)
        return {"TrainingJobArn": plan_local_job(request).arn}

    @contextmanager
    def attending(self) -> Iterator[None]:
        """Inside, an interrupt stops the job that was started, however far it came."""
        self.asked = ""
        try:
            yield
        except KeyboardInterrupt:
            if self.asked and self.runner.exists(self.asked):
                self.sagemaker_session.abandon(self.asked)
            raise
        finally:
            if self.asked:
                self.runner.release(self.asked)

    def create_hyper_parameter_tuning_job(self, **_: Any) -> None:
        """Refused: a tuner would wait for jobs that nobody starts."""
        raise OptionError(
            "a tuner was given an estimator whose jobs run on this machine",
            "there are no tuning jobs here",
            "Call fit() for each set of hyperparameters, or pass an instance type of SageMaker",
        )

    def describe_training_job(self, TrainingJobName: str) -> Description:  # noqa: N803 - AWS's name
        """What has become of the job."""
        return self.runner.describe(TrainingJobName)

    def stop_training_job(self, TrainingJobName: str) -> None:  # noqa: N803 - AWS's name
        """Ask the job to stop."""
        self.runner.stop(TrainingJobName)

    def list_tags(self, ResourceArn: str, **_: Any) -> dict[str, list[dict[str, str]]]:  # noqa: N803 - AWS's name
        """The tags that the job was given."""
        return {"Tags": self.runner.describe(ResourceArn.rpartition("/")[2]).get("Tags", [])}


class LocalSession(SageMakerLocalSession):  # type: ignore[misc]  # SageMaker's SDK is untyped
    """A session for `instance_type` "local_process", "local" and "local_gpu".

    Attributes:
        runner: What runs the jobs; by default their folders are in
            ~/.sagemaker-dist/jobs, and data in S3 is read with the credentials of
            `boto_session`, or those that boto3 finds by itself.
        file_systems: Where file systems that jobs name by their ids, such as
            "fs-01234567", are mounted on this machine.
    """

    sagemaker_config: dict[str, Any]

    def __init__(
        self,
        *,
        runner: Runner | None = None,
        boto_session: boto3.Session | None = None,
        file_systems: Mapping[str, str | Path] | None = None,
    ) -> None:
        self.runner: Runner = runner or LocalRunner(environment=_credentials(boto_session))
        places = (file_systems or {}).items()
        self.file_systems = {name: str(Path(place).absolute()) for name, place in places}
        self._extra: dict[str, Any] = {}
        super().__init__(
            boto_session=boto_session or _offline_boto_session(), sagemaker_config=_NO_TELEMETRY
        )

    def _initialize(
        self, boto_session: Any, sagemaker_client: Any, sagemaker_runtime_client: Any, **kwargs: Any
    ) -> None:
        super()._initialize(boto_session, sagemaker_client, sagemaker_runtime_client, **kwargs)
        self.config = {"local": {"local_code": True}}  # run the source where it lies
        self.sagemaker_client = LocalClient(self, self.runner)

    def expand_role(self, role: str) -> str:
        """The role as it is: nobody assumes it."""
        return role

    @contextmanager
    def starting(
        self, *, attended: bool, source: LocalSource | None = None, **extra: Any
    ) -> Iterator[LocalClient]:
        """Inside, `train` starts jobs of this source, with these arguments besides its own."""
        client: LocalClient = self.sagemaker_client
        client.attended, self._extra = attended, extra
        client.source = source
        try:
            yield client
        finally:
            client.attended, client.source, self._extra = False, None, {}

    def train(self, *args: Any, **kwargs: Any) -> Any:
        """Start a job; the arguments of `starting` win."""
        with self.without_defaults():
            return super().train(*args, **{**kwargs, **self._extra})

    @contextmanager
    def without_defaults(self) -> Iterator[None]:
        """Inside, the SDK has no defaults to look up.

        It would check the ones it has, which only turn telemetry off, against
        its schema a dozen times, a tenth of a second each.
        """
        before, self.sagemaker_config = self.sagemaker_config, {}
        try:
            yield
        finally:
            self.sagemaker_config = before

    def logs_for_job(
        self,
        job_name: str,
        wait: bool = False,
        poll: int = 10,  # noqa: ARG002 - SageMaker's signature
        log_type: str = "All",  # noqa: ARG002 - SageMaker's signature
        timeout: int | None = None,  # noqa: ARG002 - SageMaker's signature
    ) -> None:
        """Show the output of a job; with `wait`, until it is over."""
        if wait:
            self._see_through(job_name, output=True)
        else:
            print(*self.runner.logs(job_name), sep="", end="")  # noqa: T201 - asked for

    def wait_for_job(self, job: str, poll: int = 5) -> Description:  # noqa: ARG002 - SageMaker's
        """Wait until a job is over, without its output."""
        return self._see_through(job, output=False)

    def _see_through(self, name: str, *, output: bool) -> Description:
        description = self.runner.describe(name)
        if output or description["TrainingJobStatus"] not in TERMINAL:
            layout = plan_local_job(description).layout
            description = watch(self.runner, name, layout=layout, output=output)
        if description["TrainingJobStatus"] == "Failed":
            raise LocalJobError(
                f"training job {name!r} failed",
                str(description["FailureReason"]).rstrip("."),
                f"The output of every host is in {self.runner.logs_at(name)}",
            )
        return description

    def abandon(self, name: str) -> None:
        """Stop a job because the user interrupted it; once more, and it is killed."""
        try:
            print(f"\nStopping {name}: ranks have two minutes. Interrupt again to kill.")  # noqa: T201 - a person waits
            self.runner.stop(name)
            watch(self.runner, name, new_only=True)
        except KeyboardInterrupt:
            print("\nKilling it; what it has written is kept. Interrupt again to give it up.")  # noqa: T201 - a person waits
            self._kill(name)

    def _kill(self, name: str) -> None:
        while True:
            self.runner.stop(name, now=True)
            try:
                watch(self.runner, name, output=False, new_only=True)
                return
            except KeyboardInterrupt:
                continue


ProcessSession = LocalSession  # its earlier name


def _credentials(session: boto3.Session | None) -> dict[str, str]:
    """What a download needs of a session, as boto3 reads it from the environment."""
    if session is None:
        return {}
    environment = {"AWS_DEFAULT_REGION": session.region_name or ""}
    if session.profile_name != "default":
        environment["AWS_PROFILE"] = session.profile_name
    found = session.get_credentials()
    if found is None:
        return environment
    frozen = found.get_frozen_credentials()
    return {
        **environment,
        "AWS_ACCESS_KEY_ID": frozen.access_key,
        "AWS_SECRET_ACCESS_KEY": frozen.secret_key,
        "AWS_SESSION_TOKEN": frozen.token or "",
        "AWS_SECURITY_TOKEN": "",
    }


@cache
def _offline_boto_session() -> boto3.Session:
    """Region and credentials are placeholders, so that nobody looks for real ones.

    One for all sessions: what it reads of boto3's models takes a second.
    """
    return boto3.Session(
        aws_access_key_id="local_process",
        aws_secret_access_key="local_process",  # noqa: S106 - a placeholder, no secret
        region_name=REGION,
    )
