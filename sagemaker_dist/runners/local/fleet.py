# SPDX-License-Identifier: Apache-2.0
"""Protocols `Host` and `Fleet`: a job's hosts, as processes or containers, for the supervisor."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from sagemaker_dist.planning import LocalHost
from sagemaker_dist.runners.local.opt_ml_tree import HostTree
from sagemaker_dist.runners.local.output import Output


class Host(Protocol):
    """One running host of a local job: a launcher process, or a container.

    Attributes:
        place: Number, name and address of the host in the job.
        tree: Directory that is the host's /opt/ml.
        output: Output of the host, which is copied to the logs.
        was_stopped: Whether the supervisor has stopped the host.
    """

    place: LocalHost
    tree: HostTree
    output: Output
    was_stopped: bool

    def fileno(self) -> int:
        """Return the file descriptor of the host's output, for a selector."""
        ...

    def poll(self) -> int | None:
        """Return the host's exit code, or minus the number of the signal that killed it.

        Return None while the host runs.
        """
        ...

    def terminate(self) -> None:
        """Send SIGTERM to the host, so that its ranks can save a checkpoint."""
        ...

    def close(self) -> None:
        """Write the rest of the host's output to the logs, and close its descriptors."""
        ...

    def ending(self, code: int) -> str:
        """Return a sentence on how the host ended, for a host that wrote no file output/failure.

        `code` is the exit code that `poll` returned.
        """
        ...


class Fleet(Protocol):
    """All hosts of one local job."""

    def start(self) -> Sequence[Host]:
        """Create the directory tree of every host, start all hosts, and return them.

        Raises:
            DistError: A host cannot be started.
        """
        ...

    def replace(self, host: Host) -> Host:
        """Start a host again that was killed, and return it; its files and its address stay.

        Raises:
            DistError: The host cannot be started.
            OSError: Its files cannot be written.
        """
        ...

    def kill(self) -> None:
        """Kill every process of every host, and return when all have ended."""
        ...

    def remove(self) -> None:
        """Kill the hosts that still run, and remove their containers and network, if any.

        The hosts' directory trees are kept.
        """
        ...
