# SPDX-License-Identifier: Apache-2.0
"""Choice of the runner for a job's name: this machine or SageMaker.

Both may have a job of that name. A running job is chosen before a finished one, because it is the
one to stop and the one that costs money.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sagemaker_dist.cli import screen
from sagemaker_dist.errors import DistError, OptionError
from sagemaker_dist.planning.job_faults import JOB_NAME
from sagemaker_dist.runners.protocol import TERMINAL

if TYPE_CHECKING:
    from sagemaker_dist.runners import LocalRunner, Runner


def runner_of(name: str, region: str | None, profile: str | None) -> Runner:
    """Return this machine's runner if it has a running job of this name or SageMaker has none; else
    SageMaker's.

    Raises:
        OptionError: The name cannot be a job's name.
    """
    from sagemaker_dist.packaging import boto_session
    from sagemaker_dist.runners import LocalRunner
    from sagemaker_dist.runners.sagemaker import SageMakerRunner

    _check(name)
    here = LocalRunner()
    if region or profile:
        return SageMakerRunner(boto_session(region, profile))
    if not here.exists(name):
        screen.note(f"this machine has no job {name!r}; looking for it on SageMaker")
        return SageMakerRunner(boto_session())
    if here.describe(name)["TrainingJobStatus"] not in TERMINAL:
        return here
    return _between(here, name)


def _check(name: str) -> None:
    if not JOB_NAME.fullmatch(name):
        why = "a job name has 1 to 63 letters, digits and hyphens, and no hyphen at either end"
        raise OptionError(f"NAME is {name!r}", why, "Pass the name that submit printed")


def _between(here: LocalRunner, name: str) -> Runner:
    """Choose between this machine's finished job and SageMaker's job of the same name."""
    from sagemaker_dist.packaging import boto_session
    from sagemaker_dist.runners.sagemaker import SageMakerRunner

    try:
        session = boto_session()
        if not _has_credentials(session):
            return here
        there = SageMakerRunner(session)
        if not there.exists(name):
            return here
        is_over = there.describe(name)["TrainingJobStatus"] in TERMINAL
    except DistError as error:
        screen.note(f"{name!r} of this machine has ended; SageMaker was not checked: {error.why}")
        return here
    if is_over:
        more = (
            f"SageMaker's job of this name has ended too: --region {session.region_name} shows it"
        )
        screen.note(f"this is this machine's job {name!r}; {more}")
        return here
    screen.note(f"this machine's job {name!r} has ended; this is SageMaker's, which is running")
    return there


def _has_credentials(session: Any) -> bool:
    """Return whether a region and credentials are set."""
    from botocore.exceptions import BotoCoreError

    try:
        return session.region_name is not None and session.get_credentials() is not None
    except BotoCoreError:
        return False
