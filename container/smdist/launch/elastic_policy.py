# SPDX-License-Identifier: Apache-2.0
"""Policy of an elastic job: the other hosts go on when the ranks of one host have ended."""

from __future__ import annotations

import select
import signal
import socket
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from sagemaker_dist.errors import LaunchError
from smdist.launch.elastic.agent import ElasticAgent, ElasticPlace
from smdist.launch.elastic.refusals import DROPPED
from smdist.launch.failure_file import describe_end, write_loss
from smdist.launch.failure_policy import EndJob
from smdist.launch.guard_protocol import Report
from smdist.launch.outcome import Outcome
from smdist.launch.process_control import LAUNCHER_SIGNALS, read_stop_signal, signal_socket
from smdist.launch.supervise import Order, Supervisor

PrintLine = Callable[[str], None]

_TICK_SECONDS: Final = 0.2


def run_elastic(order: Order, place: ElasticPlace, base: Path, print_line: PrintLine) -> Outcome:
    """Run the ranks of this host, and wait for the other hosts if they go on without it.

    Args:
        order: Command that starts the ranks, and their time limits.
        place: Place of this host in the job.
        base: SageMaker's directory, by default /opt/ml.
        print_line: Function that prints a line in this host's log.

    Raises:
        LaunchError: The ranks cannot be started, or the port of the agent is in use.
    """
    with signal_socket(*LAUNCHER_SIGNALS) as signals:
        policy = ElasticPolicy(place, base, print_line)
        try:
            outcome = Supervisor(order, print_line, policy, signals).run()
            return policy.finish(outcome, signals)
        finally:
            policy.close()


class ElasticPolicy(EndJob):
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
        self._is_stopping = False

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
            is_connected = report.connected_at is not None or self._agent.has_ranks
            has_begun = is_connected or report.stopped or is_stopping
            self._agent.leave(self._why, has_begun=has_begun)

    def on_stop(self) -> None:
        """Take note of the signal, after which this host does not wait for the others."""
        self._is_stopping = True

    def must_end(self) -> bool:
        """Return True if the other hosts have left this host out, or the ranks cannot connect."""
        return self._agent.end is not None

    def has_succeeded(self) -> bool:
        """Return True if all ranks of this host have ended with success."""
        return self._num_succeeded == self._place.local_size

    def finish(self, outcome: Outcome, signals: socket.socket) -> Outcome:
        """Wait for the other hosts if this one failed; return success if they have succeeded.

        Args:
            outcome: Result of the ranks of this host, which have all ended.
            signals: Socket from which the signals of this process are read.
        """
        label = self._place.labels[self._place.me]
        if outcome.was_ended and (end := self._agent.end):
            outcome = _ended(outcome, label, end)
        if not outcome.failure or not self._agent.has_ranks or self._agent.is_refused:
            return outcome
        self._print_line(
            f"{outcome.failure.removeprefix(label + ' ')}; this host is lost, and the others go on"
            f" if at least {self._place.least} are left"
        )
        while (succeeded := self._agent.wait_for_others(0.0)) is None:
            if number := signal.SIGTERM if self._is_stopping else read_stop_signal(signals):
                return Outcome(status=128 + number, signal=number)
            select.select([signals], [], [], _TICK_SECONDS)
        if not succeeded:
            return outcome
        self._print_line("the job has succeeded without this host")
        write_loss(self._base, self._why)
        return Outcome(status=0)

    def close(self) -> None:
        """End the agent."""
        self._agent.close()


def _ended(outcome: Outcome, label: str, end: Mapping[str, Any]) -> Outcome:
    """Return the outcome of a host whose ranks were ended because of another host.

    Args:
        outcome: What the supervisor of the ranks has returned.
        label: Name of this host.
        end: Fields of the error, as in `refusals`.
    """
    if end["kind"] == DROPPED:
        why = outcome.failure or f"{label} was left out by the other hosts"
        return replace(outcome, status=outcome.status or 1, failure=why)
    place = {"host": label, "rank": None, "exit_code": 1, "is_secondary": True}
    fields = {**place, "kind": end["kind"], "about": end["about"]}
    text = str(LaunchError(end["what"], end["why"], end["hint"]))
    return replace(outcome, status=1, failure=text, fields=fields, culprit=None)
