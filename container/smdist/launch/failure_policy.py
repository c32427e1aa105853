# SPDX-License-Identifier: Apache-2.0
"""Policy of a host when ranks have failed: the interface, and the policy that ends the job.

EndJob             this host ends its other ranks, and fails (`max_restarts=0`)
RestartPolicy      all hosts end their ranks and start them again (`restart_policy`)
"""

from __future__ import annotations

from typing import Protocol

from smdist.launch.guard_protocol import Report


class FailurePolicy(Protocol):
    """Link between the supervisor of one host's ranks and what the other hosts do.

    The supervisor calls it while ranks run. Thread safety: none; main thread only.
    """

    def fileno(self) -> int:
        """Return a file descriptor that becomes readable for `must_end`; -1 if there is none."""
        ...

    def must_end(self) -> bool:
        """Read what has arrived, without waiting; return True if this host's ranks must end now."""
        ...

    def on_failure(self, report: Report) -> None:
        """Take note that a rank of this host failed, the first one of this run."""
        ...

    def on_stop(self) -> None:
        """Take note that this host received a signal that ends the job."""
        ...


class EndJob:
    """Policy of a job without restarts: a failure ends this host's ranks, and tells no other host.

    Ranks of other hosts fail because they lose their peer.
    """

    def fileno(self) -> int:
        """Return -1: no other host sends anything."""
        return -1

    def must_end(self) -> bool:
        """Return False."""
        return False

    def on_failure(self, report: Report) -> None:
        """Do nothing: the supervisor ends the other ranks of this host by itself."""

    def on_stop(self) -> None:
        """Do nothing: each host receives the signal by itself."""
