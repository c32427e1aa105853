# SPDX-License-Identifier: Apache-2.0
"""Policy of a host whose ranks have ended: the interface, and the policy that ends the job.

    EndJob             this host ends its other ranks, and fails
    RestartPolicy      all hosts end their ranks and start them again: `max_restarts`
    ElasticPolicy      the other hosts go on without this one: `elastic_min`

The supervisor of the ranks ends the other ranks of a host with every policy.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Protocol

from smdist.launch.guard_protocol import Report
from smdist.launch.rank_ends import RankEnds

_NEWS_SECONDS: Final = 1.0  # longest wait for the end of a rank on another host


class FailurePolicy(Protocol):
    """Link between the supervisor of one host's ranks and what the other hosts do.

    The supervisor calls it while ranks run. Thread safety: none; main thread only.
    """

    def environment(self) -> Mapping[str, str]:
        """Return environment variables for the ranks, by name."""
        ...

    def start(self) -> None:
        """Begin, after the command that starts the ranks was started.

        Raises:
            LaunchError: The policy cannot be carried out on this host.
        """
        ...

    def fileno(self) -> int:
        """Return a file descriptor that becomes readable for `must_end`; -1 if there is none."""
        ...

    def must_end(self) -> bool:
        """Read what has arrived, without waiting; return True if this host's ranks must end now."""
        ...

    def on_end(self, report: Report, *, is_stopping: bool) -> None:
        """Take note that a rank has ended; `is_stopping` after a signal to the launcher."""
        ...

    def on_failure(self, report: Report) -> None:
        """Take note that a rank of this host failed, the first one of this run."""
        ...

    def on_stop(self) -> None:
        """Take note that this host received a signal that ends the job."""
        ...

    def has_left(self, rank: int) -> bool:
        """Return True if a rank of another host is known to have ended with exit code 0.

        The supervisor calls it after the end of its ranks; it may wait a second for the news.
        """
        ...

    def has_succeeded(self) -> bool:
        """Return True if this host has succeeded, whatever the command that started the ranks does.

        torchrun, that command, waits at its end for the ranks of lost hosts, and then fails.
        """
        ...


class EndJob:
    """Policy of a job without restarts: a failure ends this host's ranks, and those of no other.

    Ranks of other hosts fail because they lose their peer.

    Args:
        ends: Exit statuses of ranks, which the launchers tell each other; None if they do not.
    """

    _ends: RankEnds | None = None  # also of policies derived from this one, which tell nothing

    def __init__(self, ends: RankEnds | None = None) -> None:
        self._ends = ends

    def environment(self) -> Mapping[str, str]:
        """Return no variables."""
        return {}

    def start(self) -> None:
        """Do nothing."""

    def fileno(self) -> int:
        """Return -1: no other host sends anything."""
        return -1

    def must_end(self) -> bool:
        """Return False."""
        return False

    def on_end(self, report: Report, *, is_stopping: bool) -> None:
        """Tell the other launchers how a rank has ended that was not stopped."""
        was_stopped = report.stopped or is_stopping
        if self._ends is not None and report.rank is not None and not was_stopped:
            self._ends.add_own(report.rank, report.exit_code)

    def on_failure(self, report: Report) -> None:
        """Do nothing: the supervisor ends the other ranks of this host by itself."""

    def on_stop(self) -> None:
        """Do nothing: each host receives the signal by itself."""

    def has_left(self, rank: int) -> bool:
        """Return True if the launcher of another host has said so, within a second."""
        return self._ends is not None and self._ends.wait(rank, _NEWS_SECONDS) == 0

    def has_succeeded(self) -> bool:
        """Return False: the command that started the ranks decides."""
        return False
