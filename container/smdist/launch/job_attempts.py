# SPDX-License-Identifier: Apache-2.0
"""Agreement of all hosts on who is restarted and when: the state that the first host keeps.

    gathering ──▶ every host is ready          ──▶ running
    running   ──▶ ranks fail, a host is lost   ──▶ ending: the other hosts end their ranks
              ──▶ every host is done           ──▶ over
    ending    ──▶ no host has ranks any more   ──▶ running, the next attempt; or over
    any       ──▶ a host received a signal     ──▶ over: every host ends by itself
              ──▶ a deadline has passed        ──▶ over

No rank of an attempt starts before all ranks of the attempt before it have ended, on every host.
Messages of a host, and in brackets their fields:

    ready   [attempt, history]              has no ranks; its last attempt, and the failures so far
    failed  [attempt, failure]              a rank failed; the host ends its other ranks
    ended   [attempt, failure, progress]    has no ranks any more
    done    [attempt]                       all its ranks ended with code 0
    stopping                                received a signal that ends the job

Messages to a host:

    start   [attempt, history]              start the ranks of this attempt
    end     [attempt]                       end the ranks, then send "ended"
    finish                                  all hosts are done
    stop    [kind, text, culprit, history]  the job has failed and is not restarted
    stopping                                the job is being stopped; no rank is restarted
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Any, Final

from smdist.launch.attempt_failure import (
    HOST,
    AttemptFailure,
    Refusal,
    culprit_of,
    refusal,
)

END_SECONDS: Final = 30.0  # time of a host to end its ranks: five seconds, and to kill the rest
MAX_HISTORY: Final = 50
Message = dict[str, Any]


class HostPhase(Enum):
    """Phase of a host, as the first host knows it."""

    ABSENT = "absent"
    READY = "ready"
    RUNNING = "running"
    DONE = "done"
    ENDED = "ended"


class JobPhase(Enum):
    """Phase of the whole job."""

    GATHERING = "gathering"
    RUNNING = "running"
    ENDING = "ending"
    OVER = "over"


@dataclass(frozen=True, slots=True, kw_only=True)
class RestartRules:
    """Rules of a job's restarts, the same on all its hosts.

    Attributes:
        hosts: Names of the hosts in messages; the first one coordinates.
        max_restarts: Most restarts of the job.
        start_timeout_seconds: Longest wait for a host, in seconds, at the start and after its loss.
        replaces_hosts: True if a host that was lost is started again, as on this project's local
            modes; False if its loss ends the job.
    """

    hosts: tuple[str, ...]
    max_restarts: int
    start_timeout_seconds: float
    replaces_hosts: bool = False


@dataclass(slots=True)
class JobAttempts:
    """State of a job's attempts on the coordinator. Thread safety: none.

    Attributes:
        rules: Rules of the job.
        send: Function that sends a message to a host; it ignores hosts that are not connected.
        print_line: Function that prints a line in the log of the first host.
        attempt: Number of the current attempt; -1 before the first one.
        history: The failures of the last attempts, 50 at most.
        phase: What the job does.
        deadline: Time on the monotonic clock when the current phase must have ended.
    """

    rules: RestartRules
    send: Callable[[str, Message], None]
    print_line: Callable[[str], None]
    clock: Callable[[], float] = time.monotonic
    attempt: int = -1
    history: list[AttemptFailure] = field(default_factory=list)
    phase: JobPhase = JobPhase.GATHERING
    deadline: float = field(init=False)
    _hosts: dict[str, HostPhase] = field(init=False)
    _failures: list[AttemptFailure] = field(default_factory=list)
    _progress: bool = False

    def __post_init__(self) -> None:
        self._hosts = dict.fromkeys(self.rules.hosts, HostPhase.ABSENT)
        self.deadline = self.clock() + self.rules.start_timeout_seconds

    def receive(self, host: str, message: Mapping[str, Any]) -> None:
        """Handle a message of a host; a message of an attempt that is over is ignored."""
        kind = message.get("type")
        if self.phase is JobPhase.OVER:
            return
        if kind == "stopping":
            self._end_by_signal(host)
        elif kind == "ready":
            self._on_ready(host, message)
        elif message.get("attempt") != self.attempt:
            return
        elif kind == "done":
            self._on_done(host)
        elif kind in {"failed", "ended"}:
            self._on_failed(host, message)

    def lose(self, host: str) -> None:
        """Handle the loss of the connection to a host's launcher."""
        was, self._hosts[host] = self._hosts[host], HostPhase.ABSENT
        if self.phase is JobPhase.OVER or was is HostPhase.ABSENT:
            return
        if self.phase is JobPhase.GATHERING and self.rules.replaces_hosts:
            return  # the host is awaited as long as before
        lost = self._lost(host)
        if not self.rules.replaces_hosts:
            self._stop(Refusal(kind="lost", text="a host that was lost cannot be restarted"), lost)
            return
        self._failures.append(lost)
        self._begin_end(host)
        self.deadline = self.clock() + self.rules.start_timeout_seconds

    def check_deadline(self) -> None:
        """End the job if the current phase lasts too long."""
        if self.phase is JobPhase.OVER or self.clock() < self.deadline:
            return
        settled = {HostPhase.READY, HostPhase.ENDED}
        late = ", ".join(name for name, phase in self._hosts.items() if phase not in settled)
        did = "joined the job" if self.phase is JobPhase.GATHERING else "ended its ranks and joined"
        text = f"{late} has not {did} in time"
        self._stop(Refusal(kind="late", text=text), culprit_of(self._failures))

    def _on_ready(self, host: str, message: Mapping[str, Any]) -> None:
        if self.phase is JobPhase.RUNNING:  # a host that started anew before its loss was noticed
            self.lose(host)
        if self.phase is JobPhase.OVER:
            return
        self._hosts[host] = HostPhase.READY
        known = [AttemptFailure.from_json(each) for each in message.get("history", ())]
        self.attempt = max(self.attempt, int(message.get("attempt", -1)))
        if known and not self.history:  # this coordinator replaces one that was lost
            self.history = known
        self._decide()

    def _on_done(self, host: str) -> None:
        self._hosts[host] = HostPhase.DONE
        if all(phase is HostPhase.DONE for phase in self._hosts.values()):
            self._leave({"type": "finish"})

    def _on_failed(self, host: str, message: Mapping[str, Any]) -> None:
        if message.get("failure"):
            failure = AttemptFailure.from_json(message["failure"])
            self._failures.append(failure)
        self._progress |= bool(message.get("progress"))
        self._begin_end(host)
        if message["type"] == "ended":
            self._hosts[host] = HostPhase.ENDED
            self._decide()

    def _begin_end(self, culprit: str) -> None:
        if self.phase is not JobPhase.RUNNING:
            return
        self.phase = JobPhase.ENDING
        self.deadline = self.clock() + END_SECONDS
        for host, phase in self._hosts.items():
            if host != culprit and phase in {HostPhase.RUNNING, HostPhase.DONE}:
                self.send(host, {"type": "end", "attempt": self.attempt})

    def _decide(self) -> None:
        """Start the next attempt, or end the job, if no host has ranks any more."""
        if any(each not in {HostPhase.READY, HostPhase.ENDED} for each in self._hosts.values()):
            return
        if self.attempt >= 0:
            if not self._failures:  # the coordinator of the last attempt was lost, with its host
                self._failures.append(self._lost(self.rules.hosts[0]))
            culprit = culprit_of(self._failures)
            assert culprit
            last = replace(culprit, progress=self._progress)
            self.history = [*self.history, last][-MAX_HISTORY:]
            if found := refusal(self.history, self.rules.max_restarts):
                self._stop(found, last)
                return
            times = f"restart {self.attempt + 1} of {self.rules.max_restarts}"
            seconds = max(0.0, time.time() - last.at_seconds)
            self.print_line(
                f"attempt {self.attempt} failed: {last.text}; {times} begins {seconds:.1f} s later"
            )
        self._start()

    def _start(self) -> None:
        self.attempt += 1
        self.phase, self.deadline = JobPhase.RUNNING, float("inf")
        self._failures, self._progress = [], False
        for host in self._hosts:
            self._hosts[host] = HostPhase.RUNNING
        self._send_all({"type": "start", "attempt": self.attempt, "history": self._history_json()})

    def _stop(self, why: Refusal, culprit: AttemptFailure | None) -> None:
        cause = culprit.to_json() if culprit else None
        message = {"type": "stop", "kind": why.kind, "text": why.text, "culprit": cause}
        self._leave({**message, "history": self._history_json()})

    def _end_by_signal(self, host: str) -> None:
        self.phase = JobPhase.OVER
        for other in self._hosts:
            if other != host:
                self.send(other, {"type": "stopping"})

    def _leave(self, message: Message) -> None:
        self.phase = JobPhase.OVER
        self._send_all(message)

    def _send_all(self, message: Message) -> None:
        """Send a message to all hosts, to the first one last: its launcher may end with it."""
        for host in reversed(self.rules.hosts):
            self.send(host, message)

    def _history_json(self) -> Sequence[Message]:
        return [each.to_json() for each in self.history]

    def _lost(self, host: str) -> AttemptFailure:
        return AttemptFailure(
            attempt=max(self.attempt, 0),
            host=host,
            kind=HOST,
            text=f"the launcher of {host} was lost",
            at_seconds=time.time(),
        )
