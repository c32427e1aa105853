# SPDX-License-Identifier: Apache-2.0
"""Policies for the loss of ranks: what a launcher does when ranks of its host have ended.

The supervisor of the ranks (`supervise`) ends the other ranks of the host in every case. The policy
decides what that means for the job:

    EndsJob        this host fails, and with it the job
    Survivable     the other hosts go on without this one, if the job is elastic
"""

from __future__ import annotations

import select
import signal
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final, Protocol

from smdist.launch.elastic.agent import ElasticAgent, ElasticPlace
from smdist.launch.failure_file import describe_end, write_loss
from smdist.launch.guard_protocol import Report
from smdist.launch.outcome import Outcome
from smdist.launch.process_control import signal_socket

PrintLine = Callable[[str], None]

_TICK_SECONDS: Final = 0.2


class LossPolicy(Protocol):
    """Decision on what the ends of ranks mean for the job. Thread safety: none."""

    def environment(self) -> Mapping[str, str]:
        """Return environment variables for the ranks, by name."""
        ...

    def start(self) -> None:
        """Begin, after the command that starts the ranks was started.

        Raises:
            LaunchError: The policy cannot be carried out on this host.
        """
        ...

    def on_end(self, report: Report, *, is_stopping: bool) -> None:
        """Take note that a rank has ended; `is_stopping` after a signal to the launcher."""
        ...

    def must_end(self) -> bool:
        """Return True if the ranks of this host must end although none of them has failed."""
        ...

    def has_succeeded(self) -> bool:
        """Return True if this host has succeeded, whatever the command that started the ranks does.

        That command, torchrun, waits for the ranks of lost hosts at its end, and then fails.
        """
        ...

    def finish(self, outcome: Outcome) -> Outcome:
        """Return the outcome of `train`, after all ranks of this host have ended.

        `outcome` is that of this host's ranks. This may take until the other hosts have ended.
        """
        ...

    def close(self) -> None:
        """Release all resources."""
        ...


class EndsJob:
    """Policy of a job that is not elastic: a lost rank ends the job."""

    def environment(self) -> Mapping[str, str]:
        """Return no variables."""
        return {}

    def start(self) -> None:
        """Do nothing."""

    def on_end(self, report: Report, *, is_stopping: bool) -> None:
        """Do nothing."""

    def must_end(self) -> bool:
        """Return False."""
        return False

    def has_succeeded(self) -> bool:
        """Return False: the command that started the ranks decides."""
        return False

    def finish(self, outcome: Outcome) -> Outcome:
        """Return the outcome unchanged."""
        return outcome

    def close(self) -> None:
        """Do nothing."""


class Survivable:
    """Policy of an elastic job: a host whose rank has ended is lost, and the other hosts go on.

    The launcher of a lost host waits until the others have ended, and then succeeds if they have:
    SageMaker counts a job as failed as soon as one container fails.

    Args:
        place: Place of this host in the job.
        base: SageMaker's directory; `<base>/output/lost` is written on a host that was lost, if
            the job succeeds without it.
        print_line: Function that prints a line in this host's log.
    """

    def __init__(self, place: ElasticPlace, base: Path, print_line: PrintLine) -> None:
        self._place = place
        self._base = base
        self._print_line = print_line
        self._agent = ElasticAgent(place, print_line)
        self._num_succeeded = 0
        self._is_lost = False
        self._why = "its launcher has ended its ranks"

    def environment(self) -> Mapping[str, str]:
        """Return the variable with the path of the agent's socket."""
        return {"SMDIST_ELASTIC_SOCKET": str(self._place.socket)}

    def start(self) -> None:
        """Start the agent.

        Raises:
            LaunchError: The agent's port is in use.
        """
        self._agent.start()

    def on_end(self, report: Report, *, is_stopping: bool) -> None:
        """Tell the other hosts that this host is lost, or has finished."""
        if not report.failed and not is_stopping:
            self._num_succeeded += 1
            if self.has_succeeded():
                self._agent.finish()
        elif not self._is_lost:
            self._is_lost = True
            self._why = describe_end(report)
            self._agent.leave(self._why)

    def must_end(self) -> bool:
        """Return True if the other hosts have left this host out."""
        return self._agent.is_dropped

    def has_succeeded(self) -> bool:
        """Return True if all ranks of this host have ended with success."""
        return self._num_succeeded == self._place.local_size

    def finish(self, outcome: Outcome) -> Outcome:
        """Wait for the other hosts if this one failed; return success if they have succeeded."""
        if not outcome.failure or not self._agent.has_ranks or self._agent.is_refused:
            return outcome
        self._print_line(
            f"{outcome.failure.removeprefix(self._place.labels[self._place.me] + ' ')}; this host"
            f" is lost, and the others go on if at least {self._place.least} are left"
        )
        with signal_socket(signal.SIGTERM, signal.SIGINT) as signals:
            while (succeeded := self._agent.wait_for_others(0.0)) is None:
                ready, _, _ = select.select([signals], [], [], _TICK_SECONDS)
                number = signals.recv(1)[0] if ready else signal.SIGCHLD
                if number != signal.SIGCHLD:
                    return Outcome(status=128 + number)
        if not succeeded:
            return outcome
        self._print_line("the job has succeeded without this host")
        write_loss(self._base, self._why)
        return Outcome(status=0)

    def close(self) -> None:
        """End the agent."""
        self._agent.close()
