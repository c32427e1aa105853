# SPDX-License-Identifier: Apache-2.0
"""Policy of a job with `max_restarts`: all hosts end their ranks, and start them again.

Each host's launcher is connected to the coordinator on the first host (`restart_coordinator`).
`job_attempts` has the messages.
"""

from __future__ import annotations

import select
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from smdist.launch.attempt_failure import AttemptFailure, failure_of
from smdist.launch.failure_policy import EndJob
from smdist.launch.guard_protocol import Report
from smdist.launch.job_attempts import Message, RestartRules
from smdist.launch.launcher_link import LauncherLink, LinkError
from smdist.launch.process_control import read_stop_signal

_PAUSE_SECONDS: Final = 0.1
_LATE_SECONDS: Final = 60.0  # the coordinator itself has a deadline, which comes before this one
_PROGRESS_SECONDS: Final = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """Decision to start the ranks of an attempt. `history` has the failures of those before."""

    attempt: int
    history: tuple[Mapping[str, Any], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Finish:
    """Decision to end without a failure of the restarts' own.

    `signal` is the number of the signal that ended the job; 0 if all ranks have ended with code 0.
    """

    signal: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class GiveUp:
    """Decision to fail.

    Attributes:
        kind: "limit", "loop", "lost" or "late".
        text: Reason why the ranks are not restarted.
        culprit: Fields of the failure that ended the last attempt; None if it is unknown.
        history: Fields of the failure of every attempt.
    """

    kind: str
    text: str
    culprit: Mapping[str, Any] | None = None
    history: tuple[Mapping[str, Any], ...] = ()


Decision = Start | Finish | GiveUp


@dataclass(slots=True)
class RestartPolicy(EndJob):
    """Member of the job's agreement on restarts, on each host. Thread safety: none.

    Attributes:
        rules: Rules of the job.
        host: Name of this host.
        connect: Function that connects to the coordinator within some seconds; it raises OSError or
            LinkError if it cannot.
        signals: Socket from which signals of this process are read.
        print_line: Function that prints a line in this host's log.
        attempt: Number of the last attempt that was started; -1 before the first one.
        is_stopping: True once the job is being stopped: a failure is then not restarted.
    """

    rules: RestartRules
    host: str
    connect: Callable[[float], LauncherLink]
    signals: socket.socket
    print_line: Callable[[str], None]
    attempt: int = -1
    is_stopping: bool = False
    _link: LauncherLink | None = None
    _is_lost: bool = False
    _history: Sequence[Mapping[str, Any]] = ()
    _arrived: list[Message] = field(default_factory=list)

    def fileno(self) -> int:
        """Return the descriptor of the connection to the coordinator; -1 after its loss."""
        return -1 if self._link is None or self._is_lost else self._link.fileno()

    def must_end(self) -> bool:
        """Read messages; return True if this host's ranks must end now."""
        self._read()
        if any(each["type"] == "stopping" for each in self._arrived):
            self.is_stopping = True
        ends = any(each["type"] in {"end", "stop"} for each in self._arrived)
        return (ends or self._is_lost) and not self.is_stopping

    def on_failure(self, report: Report) -> None:
        """Send the failure of a rank to the coordinator, which has the other hosts end theirs."""
        if not self.is_stopping:
            failure = failure_of(report, self.host, self.attempt)
            self._send({"type": "failed", "failure": failure.to_json()})

    def on_stop(self) -> None:
        """Send that this host received a signal, so that no host restarts its ranks."""
        self.is_stopping = True
        self._send({"type": "stopping"})

    def join(self) -> Decision:
        """Connect to the coordinator, and wait until all hosts are ready."""
        deadline = time.monotonic() + self.rules.start_timeout_seconds
        reported, start, why = time.monotonic() + _PROGRESS_SECONDS, time.monotonic(), ""
        while (now := time.monotonic()) < deadline:
            if found := read_stop_signal(self.signals):
                return Finish(signal=found)
            try:
                self._link = self.connect(min(deadline - now, 5.0))
            except (OSError, LinkError) as error:
                why = str(error)
            else:
                return self._rejoin()
            if now > reported:
                self.print_line(
                    f"has waited {now - start:.0f} s for the launcher of {self.rules.hosts[0]}"
                )
                reported = now + _PROGRESS_SECONDS
            time.sleep(_PAUSE_SECONDS)
        return GiveUp(
            kind="lost", text=f"the launcher of {self.rules.hosts[0]} does not answer: {why}"
        )

    def after_success(self) -> Decision:
        """Wait until all hosts are done, after all ranks of this host ended with code 0."""
        self._send({"type": "done"})
        return self._wait(float("inf"))

    def after_failure(self, failure: AttemptFailure | None, *, progress: bool) -> Decision:
        """Wait for the decision after an attempt whose ranks on this host have all ended.

        Args:
            failure: Failure of this host's ranks; None if they were ended because of another host.
            progress: True if the attempt made progress.
        """
        found = failure.to_json() if failure else None
        self._arrived = [each for each in self._arrived if each["type"] != "end"]  # has been done
        self._send({"type": "ended", "failure": found, "progress": progress})
        return self._wait(self._late())

    def close(self) -> None:
        """Close the connection to the coordinator."""
        if self._link is not None:
            self._link.close()

    def _rejoin(self) -> Decision:
        self._is_lost, self._arrived = False, []
        self._send({"type": "ready", "history": list(self._history)})
        return self._wait(self._late())

    def _wait(self, deadline: float) -> Decision:
        """Wait for the coordinator's decision, until `deadline` on the monotonic clock."""
        while time.monotonic() < deadline:
            if self.is_stopping:
                return Finish(signal=read_stop_signal(self.signals))
            while self._arrived:
                if (found := self._decision(self._arrived.pop(0))) is not None:
                    return found
            if self._is_lost:
                return self._after_loss()
            if number := read_stop_signal(self.signals):
                self.on_stop()
                return Finish(signal=number)
            if self._link is not None:
                sources = (self._link.fileno(), self.signals.fileno())
                select.select(sources, [], [], _PAUSE_SECONDS)
                self._read()
        return GiveUp(kind="late", text=f"the launcher of {self.rules.hosts[0]} does not decide")

    def _decision(self, message: Message) -> Decision | None:
        kind = message["type"]
        if kind == "end" and message["attempt"] == self.attempt:
            self._send({"type": "ended", "failure": None, "progress": False})
        elif kind == "start":
            self.attempt, self._history = message["attempt"], tuple(message["history"])
            return Start(attempt=self.attempt, history=tuple(self._history))
        elif kind == "finish":
            return Finish()
        elif kind == "stop":
            parts = {name: message[name] for name in ("kind", "text", "culprit")}
            return GiveUp(**parts, history=tuple(message["history"]))
        elif kind == "stopping":
            self.is_stopping = True
        return None

    def _after_loss(self) -> Decision:
        first = self.rules.hosts[0]
        if not self.rules.replaces_hosts or self.host == first:
            return GiveUp(kind="lost", text=f"the launcher of {first} was lost")
        self.print_line(f"the launcher of {first} was lost; waits for it to start again")
        assert self._link
        self._link.close()
        return self.join()

    def _late(self) -> float:
        return time.monotonic() + self.rules.start_timeout_seconds + _LATE_SECONDS

    def _read(self) -> None:
        if self._link is None or self._is_lost:
            return
        try:
            self._arrived += self._link.receive()
        except LinkError:
            self._is_lost = True

    def _send(self, message: Message) -> None:
        if self._link is None or self._is_lost:
            return
        try:
            self._link.send({**message, "attempt": self.attempt})
        except LinkError:
            self._read()  # messages that arrived before the loss count
            self._is_lost = True
