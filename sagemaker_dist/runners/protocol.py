# SPDX-License-Identifier: Apache-2.0
"""The one seam to whatever runs a job."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final, Protocol, TypeAlias

Request: TypeAlias = Mapping[str, Any]  # as CreateTrainingJob takes it
Description: TypeAlias = dict[str, Any]  # as DescribeTrainingJob gives it

NO_MODEL: Final = "[sagemaker-dist] no model was saved"  # how the log begins to say so
TERMINAL: Final = frozenset({"Completed", "Failed", "Stopped"})


class Runner(Protocol):
    """Anything that can run a request: processes here, a list in a test."""

    def start(self, request: Request, *, attended: bool = False) -> str:
        """Start the job and return its name.

        With `attended`, the job ends when the calling process does, however
        that ends, unless `release` comes first.
        """
        ...

    def release(self, name: str) -> None:
        """Stop watching over an attended job; one that still runs is stopped."""
        ...

    def exists(self, name: str) -> bool:
        """Whether a job of this name was ever started."""
        ...

    def describe(self, name: str) -> Description:
        """What DescribeTrainingJob would answer.

        Raises:
            JobError: There is no such job.
        """
        ...

    def stop(self, name: str, *, now: bool = False) -> None:
        """Ask a job to stop; with `now`, kill it. Returns at once.

        Killing it again gives up its model, where that is being written.
        """
        ...

    def logs(self, name: str, *, follow: bool = False, new_only: bool = False) -> Iterator[str]:
        r"""Segments of output, each ending in \n, or in \r where the next replaces it.

        With `follow`, goes on until the job is over; an empty string then marks
        each moment in which nothing new came. With `new_only`, what was said
        before the call is left out.
        """
        ...

    def logs_at(self, name: str) -> str:
        """Where the logs lie, for people."""
        ...
