# SPDX-License-Identifier: Apache-2.0
"""The protocol of runners: everything that can run a job."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final, Protocol, TypeAlias

Request: TypeAlias = Mapping[str, Any]  # fields of CreateTrainingJob
Description: TypeAlias = dict[str, Any]  # fields of DescribeTrainingJob's answer

NO_MODEL: Final = "[sagemaker-dist] no model was saved"  # beginning of the log line
TERMINAL: Final = frozenset({"Completed", "Failed", "Stopped"})


class Runner(Protocol):
    """A runner of requests: SageMaker, this machine, or a list in a test."""

    def start(self, request: Request, *, attended: bool = False) -> str:
        """Start the job and return its name.

        With `attended`, the job is stopped when the calling process ends for any reason, unless
        `release` is called before.
        """
        ...

    def release(self, name: str) -> None:
        """Stop attending a job; if it still runs, it is stopped."""
        ...

    def exists(self, name: str) -> bool:
        """Return whether a job of this name was ever started."""
        ...

    def describe(self, name: str) -> Description:
        """Return the answer of DescribeTrainingJob.

        Raises:
            JobError: The job does not exist.
        """
        ...

    def stop(self, name: str, *, now: bool = False) -> None:
        """Stop a job; with `now`, kill it. Return without waiting.

        A second call with `now` discards the model while it is being written.
        """
        ...

    def logs(self, name: str, *, follow: bool = False, new_only: bool = False) -> Iterator[str]:
        r"""Yield segments of output, each ending in \n, or in \r if the next one replaces it.

        With `follow`, continue until the job ends; an empty string means that nothing new has come.
        With `new_only`, leave out earlier output.
        """
        ...

    def logs_at(self, name: str) -> str:
        """Return the place of the logs, for people."""
        ...
