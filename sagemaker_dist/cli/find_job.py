# SPDX-License-Identifier: Apache-2.0
"""Search for the job of a given name, on this machine and on SageMaker.

The result is a runner: an object that describes and stops the jobs of this machine, or the jobs of
SageMaker. If both have a job of this name, the running one is preferred, because it costs money and
users may want to stop it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from sagemaker_dist.cli import screen
from sagemaker_dist.errors import DistError, JobError, OptionError
from sagemaker_dist.planning.job_faults import JOB_NAME
from sagemaker_dist.runners.protocol import TERMINAL

if TYPE_CHECKING:
    from sagemaker_dist.runners import LocalRunner, Runner

_SET_REGION: Final = "set AWS_DEFAULT_REGION, or pass --region"
_SET_CREDENTIALS: Final = "run aws configure, or set AWS_PROFILE"


def runner_of(name: str, region: str | None, profile: str | None) -> Runner:
    """Return the runner that has the job of this name: this machine's or SageMaker's.

    If `region` or `profile` is given, the result is SageMaker's runner. Else, if both have a job of
    this name, the runner with the running job is returned. If both jobs run, or both have ended, it
    is this machine's runner.

    Args:
        name: Name of the job.
        region: AWS region; None for AWS's own settings.
        profile: Profile of AWS credentials; None for AWS's own settings.

    Raises:
        OptionError: The name cannot be a job's name.
        JobError: This machine has no such job, and AWS's settings do not allow to look for it on
            SageMaker.
    """
    from sagemaker_dist.packaging import boto_session
    from sagemaker_dist.runners import LocalRunner
    from sagemaker_dist.runners.sagemaker import SageMakerRunner

    _check(name)
    local_runner = LocalRunner()
    if region or profile:
        return SageMakerRunner(boto_session(region, profile))
    if not local_runner.exists(name):
        return _sagemaker_runner(name)
    if local_runner.describe(name)["TrainingJobStatus"] not in TERMINAL:
        return local_runner
    return _choose(local_runner, name)


def _check(name: str) -> None:
    if not JOB_NAME.fullmatch(name):
        why = "a job name has 1 to 63 letters, digits and hyphens, and no hyphen at either end"
        raise OptionError(f"NAME is {name!r}", why, "Pass the name that submit printed")


def _sagemaker_runner(name: str) -> Runner:
    """Return SageMaker's runner for the name of a job that this machine does not have."""
    from sagemaker_dist.packaging import boto_session
    from sagemaker_dist.runners.sagemaker import SageMakerRunner

    session = boto_session()
    if session.region_name is None:
        raise _not_here(name, "no AWS region is set", "no_region", _SET_REGION)
    if not _has_credentials(session):
        raise _not_here(name, "no AWS credentials were found", "no_credentials", _SET_CREDENTIALS)
    screen.note(f"this machine has no job {name!r}; looking for it on SageMaker")
    return SageMakerRunner(session)


def _not_here(name: str, lacks: str, kind: str, setting: str) -> JobError:
    return JobError(
        f"this machine has no job {name!r}",
        f"SageMaker was not checked, because {lacks}",
        f"Check the name; for a job on SageMaker, {setting}",
        kind=kind,
    )


def _choose(local_runner: LocalRunner, name: str) -> Runner:
    """Return SageMaker's runner if it has a running job of this name, else `local_runner`.

    Call this if the job of this name on this machine has ended.
    """
    from sagemaker_dist.packaging import boto_session
    from sagemaker_dist.runners.sagemaker import SageMakerRunner

    try:
        session = boto_session()
        if not _has_credentials(session):
            return local_runner
        sagemaker_runner = SageMakerRunner(session)
        if not sagemaker_runner.exists(name):
            return local_runner
        has_ended = sagemaker_runner.describe(name)["TrainingJobStatus"] in TERMINAL
    except DistError as error:
        screen.note(f"{name!r} of this machine has ended; SageMaker was not checked: {error.why}")
        return local_runner
    if has_ended:
        more = (
            f"SageMaker's job of this name has ended too: --region {session.region_name} shows it"
        )
        screen.note(f"this is this machine's job {name!r}; {more}")
        return local_runner
    screen.note(f"this machine's job {name!r} has ended; this is SageMaker's, which is running")
    return sagemaker_runner


def _has_credentials(session: Any) -> bool:
    """Return whether a boto3 session has both a region and credentials."""
    from botocore.exceptions import BotoCoreError

    try:
        return session.region_name is not None and session.get_credentials() is not None
    except BotoCoreError:
        return False
