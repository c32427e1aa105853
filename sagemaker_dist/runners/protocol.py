# SPDX-License-Identifier: Apache-2.0
"""The protocol `Runner`, with the methods of each class that runs training jobs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final, Protocol, TypeAlias

Request: TypeAlias = Mapping[str, Any]  # fields of CreateTrainingJob
Description: TypeAlias = dict[str, Any]  # fields of DescribeTrainingJob's answer

NO_MODEL: Final = "[sagemaker-dist] no model was saved"  # the log line begins with this
ROOT_CAUSE: Final = "RootCause"  # key of a local job's description: fields of the first failure
LOST_LOG_BYTES: Final = "LostLogBytes"  # key of a local job's description: see `State`
MAX_LOG_BYTES: Final = 1 << 30  # limit of one host's output in the log of a local job
RESTARTS: Final = "Restarts"  # key of a local job's description: failures before its restarts
TERMINAL: Final = frozenset({"Completed", "Failed", "Stopped"})


class Runner(Protocol):
    """Methods to start, describe and stop training jobs, and to read their logs.

    Implementations run jobs on SageMaker or on this machine, or only record their requests.
    """

    def start(self, request: Request, *, attended: bool = False) -> str:
        """Start the job of a request (fields of CreateTrainingJob) and return the job's name.

        With `attended`, a local job is stopped when this process ends for any reason.
        """
        ...

    def release(self, name: str) -> None:
        """Stop a job that was started with `attended`, if it still runs.

        Call this also after the job has ended, to free resources that `start` has opened.
        """
        ...

    def exists(self, name: str) -> bool:
        """Return whether a job of this name was ever started."""
        ...

    def describe(self, name: str) -> Description:
        """Return the state of a job, in the fields of DescribeTrainingJob's answer.

        Raises:
            JobError: The job does not exist.
        """
        ...

    def stop(self, name: str, *, now: bool = False) -> None:
        """Request that a job stops, and return without waiting.

        The job's ranks get time to save a checkpoint. With `now`, the ranks are killed at once. A
        second call with `now` discards the model that is being written.
        """
        ...

    def logs(self, name: str, *, follow: bool = False, new_only: bool = False) -> Iterator[str]:
        r"""Yield the output of all hosts as segments, each ending in \n or \r.

        A segment that ends in \r is a state of a progress bar, which the next segment replaces.
        With `follow`, continue until the job ends, and yield an empty string whenever there is no
        new output. With `new_only`, leave out the output before this call.
        """
        ...

    def logs_at(self, name: str) -> str:
        """Return a text for people that says where the logs are, such as a directory."""
        ...
