# SPDX-License-Identifier: Apache-2.0
"""`LocalSession`: a session of SageMaker's SDK whose jobs run on this machine.

SageMaker's SDK makes all its calls through a session. This session needs no Docker Compose, AWS
credentials, region or network.
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
from sagemaker_dist.runners.protocol import ROOT_CAUSE, Description
from sagemaker_dist.runners.viewer import watch

ROLE: Final = "arn:aws:iam::000000000000:role/local_process"
_NO_TELEMETRY: Final = {
    "SchemaVersion": "1.0",
    "SageMaker": {"PythonSDK": {"Modules": {"TelemetryOptOut": True}}},
}


class LocalJobError(JobError, UnexpectedStatusException):  # type: ignore[misc]  # untyped SDK
    """Error for a local job that failed; a subclass of the SDK's UnexpectedStatusException, too."""

    def __init__(
        self, what: str, why: str, hint: str, *, cause: Mapping[str, Any] = JobError.cause
    ) -> None:
        JobError.__init__(self, what, why, hint, cause=cause)
        UnexpectedStatusException.__init__(self, why, ["Completed", "Stopped"], "Failed")
        self.args = (what, why, hint)  # plain args: workers pickle errors


class LocalClient(LocalSagemakerClient):  # type: ignore[misc]  # SageMaker's SDK is untyped
    """Client with the methods of SageMaker's API for training jobs; jobs run on this machine.

    Attributes:
        runner: Runner of the jobs.
        attended: True if the next job is to be stopped when this process ends.
        started_job: Name of the job that was started last, or "".
        source: Code of the next job, or None.
    """

    def __init__(self, session: LocalSession, runner: Runner) -> None:
        super().__init__(session)
        self.runner = runner
        self.attended = False
        self.started_job = ""
        self.source: LocalSource | None = None

    def create_training_job(self, **request: Any) -> dict[str, str]:
        """Start a job on this machine, and return {"TrainingJobArn": ARN}.

        `request` has the arguments of CreateTrainingJob. If known, the path of the code and the
        directories of mounted file systems are added, for which SageMaker's API has no fields.
        """
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
        """Stop the job that is started in the `with` block if the user presses Ctrl-C there."""
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
        """Raise OptionError: tuning jobs run on SageMaker only."""
        raise OptionError(
            "the estimator of a tuner has a local instance type",
            "tuning jobs run on SageMaker only",
            "Call fit() for each set of hyperparameters, or pass an instance type of SageMaker",
            kind="unsupported",
        )

    def describe_training_job(self, TrainingJobName: str) -> Description:  # noqa: N803 - AWS's name
        """Return the state of a job, in the fields of DescribeTrainingJob's answer."""
        return self.runner.describe(TrainingJobName)

    def stop_training_job(self, TrainingJobName: str) -> None:  # noqa: N803 - AWS's name
        """Request that a job stops, and return without waiting.

        The job's ranks have two minutes to save a checkpoint.
        """
        self.runner.stop(TrainingJobName)

    def list_tags(self, ResourceArn: str, **_: Any) -> dict[str, list[dict[str, str]]]:  # noqa: N803 - AWS's name
        """Return {"Tags": tags} for the job with this ARN, in the form of ListTags' answer."""
        return {"Tags": self.runner.describe(ResourceArn.rpartition("/")[2]).get("Tags", [])}


class LocalSession(SageMakerLocalSession):  # type: ignore[misc]  # SageMaker's SDK is untyped
    """Session of SageMaker's SDK for the instance types "local_process", "local" and "local_gpu".

    Attributes:
        runner: Runner of the jobs. The default runner writes to ~/.sagemaker-dist/jobs. It
            downloads data from S3 with the credentials of `boto_session`; without one, with boto3's
            default credentials.
        file_systems: Id of a file system, such as "fs-01234567" -> directory of this machine where
            it is mounted.
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
        """Return the role unchanged: local jobs need no permissions."""
        return role

    @contextmanager
    def starting(
        self, *, attended: bool, source: LocalSource | None = None, **extra: Any
    ) -> Iterator[LocalClient]:
        """Set the code and further arguments of jobs that are started in the `with` block.

        Yields the client that starts the jobs.

        Args:
            attended: True if the jobs are to be stopped when this process ends.
            source: Code of the jobs, or None.
            extra: Keyword arguments for `LocalSession.train`. They override the SDK's arguments.
        """
        client: LocalClient = self.sagemaker_client
        client.attended, self._extra = attended, extra
        client.source = source
        try:
            yield client
        finally:
            client.attended, client.source, self._extra = False, None, {}

    def train(self, *args: Any, **kwargs: Any) -> Any:
        """Start a training job, as the method `train` of the SDK's session does.

        Inside `with session.starting(...)`, its `extra` arguments override the arguments here.
        """
        with self.without_defaults():
            return super().train(*args, **{**kwargs, **self._extra})

    @contextmanager
    def without_defaults(self) -> Iterator[None]:
        """Turn off the SDK's lookups of default values in its config file, in the `with` block.

        For these lookups, the SDK would check its config file a dozen times, which takes a second.
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
        """Print the output of a job; with `wait`, continue until the job ends.

        The other arguments have no effect; SageMaker's SDK passes them.

        Raises:
            LocalJobError: With `wait`, the job failed.
        """
        if wait:
            self._wait_to_end(job_name, output=True)
        else:
            print(*self.runner.logs(job_name), sep="", end="")  # noqa: T201 - this is the method's purpose

    def wait_for_job(self, job: str, poll: int = 5) -> Description:  # noqa: ARG002 - SageMaker's
        """Wait until a job ends, and return its description. The job's output is not printed.

        The argument `poll`, which SageMaker's SDK passes, has no effect.

        Raises:
            LocalJobError: The job failed.
        """
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
                f"Read the output of every host in {self.runner.logs_at(name)}",
                cause=description.get(ROOT_CAUSE, {}),
            )
        return description

    def abandon(self, name: str) -> None:
        """Stop a job after Ctrl-C, and show its output until it ends; a second Ctrl-C kills it."""
        try:
            print(  # noqa: T201 - for the user at the terminal
                f"\nStopping {name}: its ranks have two minutes to save a checkpoint."
                " Interrupt again to kill the job."
            )
            self.runner.stop(name)
            watch(self.runner, name, new_only=True)
        except KeyboardInterrupt:
            print(  # noqa: T201 - for the user at the terminal
                "\nKilling the job. The model that it saved is kept."
                " Interrupt again to discard this model."
            )
            self._kill(name)

    def _kill(self, name: str) -> None:
        while True:
            self.runner.stop(name, now=True)
            try:
                watch(self.runner, name, output=False, new_only=True)
                return
            except KeyboardInterrupt:
                continue


ProcessSession = LocalSession  # earlier name of the class


def _credentials(session: boto3.Session | None) -> dict[str, str]:
    """Return environment variables with a boto3 session's region and credentials, for a download.

    The dict is empty without a session.
    """
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
    """Return a boto3.Session with placeholders as region and credentials.

    So boto3 does not search for real credentials. All LocalSessions share this object, because
    loading boto3's data takes a second.
    """
    return boto3.Session(
        aws_access_key_id="local_process",
        aws_secret_access_key="local_process",  # noqa: S106 - a placeholder, no secret
        region_name=REGION,
    )
