# SPDX-License-Identifier: Apache-2.0
"""A SageMaker session whose jobs run on this machine, as processes or containers.

SageMaker's SDK makes all its calls through a session; this one works without Compose, AWS
credentials, a region or the network.
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
from sagemaker_dist.estimators.sagemaker_sdk import user_environment
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
    """A local job failed; also an instance of the exception that SageMaker's SDK raises."""

    def __init__(self, what: str, why: str, hint: str) -> None:
        UnexpectedStatusException.__init__(self, why, ["Completed", "Stopped"], "Failed")
        self.args = (what, why, hint)
        self.what, self.why, self.hint = what, why, hint


class LocalClient(LocalSagemakerClient):  # type: ignore[misc]  # SageMaker's SDK is untyped
    """The operations of SageMaker's API that training jobs need, on a local runner."""

    def __init__(self, session: LocalSession, runner: Runner) -> None:
        super().__init__(session)
        self.runner = runner
        self.attended = False
        self.started_job = ""
        self.source: LocalSource | None = None

    def create_training_job(self, **request: Any) -> dict[str, str]:
        """Start the job; the place of its code is added, because the API has no field for it."""
        if self.source is not None:
            request["LocalSource"] = self.source.request()
        if self.sagemaker_session.file_systems:
            request[FILE_SYSTEMS] = self.sagemaker_session.file_systems
        self.started_job = request["TrainingJobName"]
        with user_environment():
            self.runner.start(request, attended=self.attended)
        return {"TrainingJobArn": plan_local_job(request).arn}

    @contextmanager
    def attending(self) -> Iterator[None]:
        """Stop the started job if the user interrupts inside the context."""
        self.started_job = ""
        try:
            yield
        except KeyboardInterrupt:
            if self.started_job and self.runner.exists(self.started_job):
                self.sagemaker_session.abandon(self.started_job)
            raise
        finally:
            if self.started_job:
                self.runner.release(self.started_job)

    def create_hyper_parameter_tuning_job(self, **_: Any) -> None:
        """Refuse tuning jobs, which do not exist locally."""
        raise OptionError(
            "a tuner has an estimator whose jobs run on this machine",
            "tuning jobs run on SageMaker only",
            "Call fit() for each set of hyperparameters, or pass an instance type of SageMaker",
        )

    def describe_training_job(self, TrainingJobName: str) -> Description:  # noqa: N803 - AWS's name
        """Return the job's description."""
        return self.runner.describe(TrainingJobName)

    def stop_training_job(self, TrainingJobName: str) -> None:  # noqa: N803 - AWS's name
        """Stop the job."""
        self.runner.stop(TrainingJobName)

    def list_tags(self, ResourceArn: str, **_: Any) -> dict[str, list[dict[str, str]]]:  # noqa: N803 - AWS's name
        """Return the job's tags."""
        return {"Tags": self.runner.describe(ResourceArn.rpartition("/")[2]).get("Tags", [])}


class LocalSession(SageMakerLocalSession):  # type: ignore[misc]  # SageMaker's SDK is untyped
    """A session for `instance_type` "local_process", "local" and "local_gpu".

    Attributes:
        runner: Runner of the jobs; by default their folders are in ~/.sagemaker-dist/jobs, and data
            in S3 is read with the credentials of `boto_session`, or boto3's default ones.
        file_systems: Directories of this machine where file systems are mounted, by ids such as
            "fs-01234567".
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
        self.config = {"local": {"local_code": True}}  # run the code in place, without an upload
        self.sagemaker_client = LocalClient(self, self.runner)

    def expand_role(self, role: str) -> str:
        """Return the role unchanged: no one assumes it."""
        return role

    @contextmanager
    def starting(
        self, *, attended: bool, source: LocalSource | None = None, **extra: Any
    ) -> Iterator[LocalClient]:
        """Start jobs inside with this source and these extra arguments."""
        client: LocalClient = self.sagemaker_client
        client.attended, self._extra = attended, extra
        client.source = source
        try:
            yield client
        finally:
            client.attended, client.source, self._extra = False, None, {}

    def train(self, *args: Any, **kwargs: Any) -> Any:
        """Start a job; the arguments of `starting` take precedence."""
        with self.without_defaults():
            return super().train(*args, **{**kwargs, **self._extra})

    @contextmanager
    def without_defaults(self) -> Iterator[None]:
        """Turn off the SDK's config lookups inside the context.

        Otherwise the SDK validates its config against its schema a dozen times, 0.1 s each.
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
        """Print the output of a job; with `wait`, until it ends."""
        if wait:
            self._wait_to_end(job_name, output=True)
        else:
            print(*self.runner.logs(job_name), sep="", end="")  # noqa: T201 - this is the method's purpose

    def wait_for_job(self, job: str, poll: int = 5) -> Description:  # noqa: ARG002 - SageMaker's
        """Wait until a job ends, without its output."""
        return self._wait_to_end(job, output=False)

    def _wait_to_end(self, name: str, *, output: bool) -> Description:
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
        """Stop a job after the user's interrupt; kill it after a second one."""
        try:
            print(  # noqa: T201 - for the user at the terminal
                f"\nStopping {name}: its ranks have two minutes to save."
                " Interrupt again to kill it."
            )
            self.runner.stop(name)
            watch(self.runner, name, new_only=True)
        except KeyboardInterrupt:
            print("\nKilling it and keeping its output. Interrupt again to discard that too.")  # noqa: T201 - for the user at the terminal
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
    """Return the environment variables with which a download uses the session's credentials."""
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
    """Return a session with placeholders for region and credentials, so that boto3 does not search
    for real ones.

    It is shared by all LocalSessions, because loading boto3's models takes a second.
    """
    return boto3.Session(
        aws_access_key_id="local_process",
        aws_secret_access_key="local_process",  # noqa: S106 - a placeholder, no secret
        region_name=REGION,
    )
