# SPDX-License-Identifier: Apache-2.0
"""What the supervisor asks of the hosts of a job, be they processes or containers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from sagemaker_dist.planning import LocalHost
from sagemaker_dist.runners.local.output import Output
from sagemaker_dist.runners.local.tree import HostTree


class Host(Protocol):
    """One running host.

    Attributes:
        asked: It was asked to stop.
    """

    place: LocalHost
    tree: HostTree
    output: Output
    asked: bool

    def fileno(self) -> int:
        """Where its output comes from, for a selector."""
        ...

    def poll(self) -> int | None:
        """Its exit code, negative for a signal; None while it runs."""
        ...

    def terminate(self) -> None:
        """Ask it to stop; its ranks get their time."""
        ...

    def close(self) -> None:
        """Write down the rest of what it said, and let go of it."""
        ...

    def ending(self, code: int) -> str:
        """How it ended, in a sentence, where it gave no reason of its own."""
        ...


class Fleet(Protocol):
    """All hosts of one job."""

    def start(self) -> Sequence[Host]:
        """Make every host's tree and start it.

        Raises:
            DistError: A host cannot be started.
        """
        ...

    def kill(self) -> None:
        """Kill everything that any host has started; returns once it is gone."""
        ...

    def remove(self) -> None:
        """Kill what still runs and leave nothing of the hosts but their trees."""
        ...
