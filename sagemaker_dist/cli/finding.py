# SPDX-License-Identifier: Apache-2.0
"""Who runs the job of a name: this machine, or SageMaker.

Both may have one. A job that goes on is meant before one that is over, for it is
the one to stop, and the one that costs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sagemaker_dist.cli import screen
from sagemaker_dist.errors import DistError, OptionError
from sagemaker_dist.planning.faults import JOB_NAME
from sagemaker_dist.runners.protocol import TERMINAL

if TYPE_CHECKING:
    from sagemaker_dist.runners import LocalRunner, Runner


def runner_of(name: str, region: str | None, profile: str | None) -> Runner:
    """This machine where its job of this name goes on, or SageMaker has none; else SageMaker.

    Raises:
        OptionError: It is no name of a job.
    """
    from sagemaker_dist.packaging import boto_session
    from sagemaker_dist.runners import LocalRunner
    from sagemaker_dist.runners.sagemaker import SageMakerRunner

    _check(name)
    here = LocalRunner()
    if region or profile:
        return SageMakerRunner(boto_session(region, profile))
    if not here.exists(name):
        screen.note(f"this machine has no job {name!r}; SageMaker is asked")
        return SageMakerRunner(boto_session())
    if here.describe(name)["TrainingJobStatus"] not in TERMINAL:
        return here
    return _between(here, name)


def _check(name: str) -> None:
    if not JOB_NAME.fullmatch(name):
        why = "names of jobs have 1 to 63 letters, digits and hyphens, with no hyphen at an end"
        raise OptionError(f"NAME is {name!r}", why, "Pass the name that submit printed")


def _between(here: LocalRunner, name: str) -> Runner:
    """The job of this machine is over; SageMaker's of the same name may go on."""
    from sagemaker_dist.packaging import boto_session
    from sagemaker_dist.runners.sagemaker import SageMakerRunner

    try:
        session = boto_session()
        if not _can_ask(session):
            return here
        there = SageMakerRunner(session)
        if not there.exists(name):
            return here
        is_over = there.describe(name)["TrainingJobStatus"] in TERMINAL
    except DistError as error:
        screen.note(f"{name!r} of this machine is over; of SageMaker nobody knows: {error.why}")
        return here
    if is_over:
        more = f"SageMaker's is over, too: --region {session.region_name} shows it"
        screen.note(f"this is {name!r} of this machine; {more}")
        return here
    screen.note(f"{name!r} of this machine is over; this is SageMaker's, which goes on")
    return there


def _can_ask(session: Any) -> bool:
    """Without credentials nobody here has a job there."""
    from botocore.exceptions import BotoCoreError

    try:
        return session.region_name is not None and session.get_credentials() is not None
    except BotoCoreError:
        return False
