# SPDX-License-Identifier: Apache-2.0
"""Protocol of a job's hosts for the supervisor, for processes and containers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from sagemaker_dist.planning import LocalHost
from sagemaker_dist.runners.local.opt_ml_tree import HostTree
from sagemaker_dist.runners.local.output import Output


class Host(Protocol):
    """One running host.

    Attributes:
        was_stopped: Whether the supervisor has stopped it.
    """

    place: LocalHost
    tree: HostTree
    output: Output
    was_stopped: bool

    def fileno(self) -> int:
        """Return the descriptor of its output, for a selector."""
        ...

    def poll(self) -> int | None:
        """Return its exit code, negative for a signal; None while it runs."""
        ...

    def terminate(self) -> None:
        """Stop it with time for its ranks to save."""
        ...

    def close(self) -> None:
        """Write the rest of its output to the logs, and release it."""
        ...

    def ending(self, code: int) -> str:
        """Return a sentence on how it ended, for a host that gave no reason."""
        ...


class Fleet(Protocol):
    """All hosts of one job."""

    def start(self) -> Sequence[Host]:
        """Create every host's tree and start the host.

        Raises:
            DistError: A host cannot be started.
        """
        ...

    def kill(self) -> None:
        """Kill every process of every host; return when all are gone."""
        ...

    def remove(self) -> None:
        """Kill all that still runs, and remove everything of the hosts but their trees."""
        ...
