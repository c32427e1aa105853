# SPDX-License-Identifier: Apache-2.0
"""Supervisor of one host's ranks: starts them, sends them signals, and ends them all.

    running ──▶ a rank fails      ──▶ the others have failure_seconds to end, then are killed
            ──▶ SIGTERM, SIGINT   ──▶ the ranks have stop_seconds to end, then are killed
            ──▶ all succeed       ──▶ status 0

The first rank that fails determines the exit status. The supervisor starts one command: torchrun,
the task starter or a single guard. The rank guards report the ends of ranks to the supervisor,
because torchrun waits up to 30 s for the other ranks when one fails. The command's own output is
shown only if the command fails and no rank has failed.
"""

from __future__ import annotations

import contextlib
import selectors
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from sagemaker_dist.errors import LaunchError
from smdist.dataparallel.starter_report import read_report
from smdist.launch.failure_file import (
    describe,
    fields_of,
    first_failure,
    shorten,
    with_left_rank,
)
from smdist.launch.failure_policy import FailurePolicy
from smdist.launch.guard_protocol import (
    ENDED_ON_REQUEST,
    MAX_MESSAGE,
    SOCKET,
    GuardMessageError,
    Report,
    exit_status,
    give_output,
    listen,
    parse_message,
    pid_of,
    signal_name,
)
from smdist.launch.kernel_state import StateWatch
from smdist.launch.nonblocking_writer import write_whole
from smdist.launch.outcome import Outcome
from smdist.launch.process_control import (
    adopt_orphans,
    die_with_parent,
    kill_descendants,
    read_stop_signal,
)
from smdist.launch.traceback_parser import find_culprit

PrintLine = Callable[[str], None]

_TICK_SECONDS: Final = 0.1
_PRINT_SECONDS: Final = 1.0
_PROGRESS_SECONDS: Final = 10.0
_LOG: Final = "starter.log"
_LOG_BYTES: Final = 1 << 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """Command that starts this host's ranks, its environment and the ranks' time limits.

    Attributes:
        command: Command line of torchrun, the task starter, or one guard.
        environ: The whole environment of the command.
        directory: An empty directory for the files of this run. It is also the working directory
            of the command, so that the user's modules cannot shadow torchrun's.
        label: Name of this host in messages.
        stop_seconds: Seconds that ranks have to end after a signal, before they are killed.
        failure_seconds: Seconds that ranks have to end after another rank failed.
        starter: Name of the command in messages.
    """

    command: tuple[str, ...]
    environ: Mapping[str, str]
    directory: Path
    label: str
    stop_seconds: float
    failure_seconds: float = 5.0
    starter: str = "torchrun"


class Supervisor:
    """Runs the command that starts this host's ranks, and watches the ranks until all have ended.

    Thread safety: none; main thread only.

    Args:
        order: Command that starts the ranks, and their time limits.
        print_line: Function that prints a line in this host's log.
        policy: What the other hosts of the job do when ranks fail.
        signals: Socket from which the signals of this process are read (`signal_socket`).
    """

    def __init__(
        self, order: Order, print_line: PrintLine, policy: FailurePolicy, signals: socket.socket
    ) -> None:
        self._order = order
        self._print_line = print_line
        self._policy = policy
        self._signals = signals
        self._selector = selectors.DefaultSelector()
        self._ranks: dict[socket.socket, int | None] = {}  # connected guard -> its rank
        self._reports: dict[socket.socket, Report] = {}
        self._states: dict[int, StateWatch] = {}  # process number -> the starter, or a guard
        self._stop_signal = 0
        self._deadline = float("inf")
        self._ending = False
        self._was_ended = False

    def run(self) -> Outcome:
        """Start the command, wait for all ranks, and kill every process that is left.

        Raises:
            LaunchError: The command could not be started.
        """
        adopt_orphans()
        try:
            with self._selector, listen(self._order.directory) as server:
                self._selector.register(self._signals, selectors.EVENT_READ, self._on_signal)
                self._selector.register(server, selectors.EVENT_READ, self._on_guard)
                if (descriptor := self._policy.fileno()) >= 0:
                    self._selector.register(descriptor, selectors.EVENT_READ, self._on_policy)
                starter = self._start()
                self._policy.start()
                self._watch(starter)
                status = starter.poll()
        finally:
            kill_descendants()
        starter.poll()  # Popen collects the exit status of the killed process here
        return self._outcome(status or 0)

    def _start(self) -> subprocess.Popen[bytes]:
        own = {
            "SMDIST_GUARD_SOCKET": str(self._order.directory / SOCKET),
            **self._policy.environment(),
        }
        try:
            with (self._order.directory / _LOG).open("wb") as log:
                return subprocess.Popen(
                    self._order.command,
                    env={**self._order.environ, **own},
                    cwd=self._order.directory,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    start_new_session=True,  # Ctrl-C reaches the ranks through this process, once
                    preexec_fn=die_with_parent(signal.SIGTERM),
                )
        except OSError as error:
            raise LaunchError(
                f"the ranks of {self._order.label} cannot be started",
                str(error),
                "If the argument list is too long, pass big hyperparameters in a file of a"
                " channel; otherwise check that the image contains the program in this error",
            ) from error

    def _watch(self, starter: subprocess.Popen[bytes]) -> None:
        start = reported = time.monotonic()
        subject = f"{self._order.starter}, which starts the ranks,"
        self._states[starter.pid] = StateWatch(starter.pid, self._print_line, subject=subject)
        while True:
            gone = starter.poll() is not None  # read before the guards' last messages
            for key, _ in self._selector.select(0 if gone else _TICK_SECONDS):
                key.data(key.fileobj)
            for state in self._states.values():
                state.check()
            if self._stop_signal and not self._ending:
                self._pass_on(starter)
            self._check_policy()
            if self._is_over(gone):
                return
            now = time.monotonic()
            if not self._reports and not self._ranks and now - reported >= _PROGRESS_SECONDS:
                missing = ", ".join(read_report(self._order.directory).missing)
                self._print_line(
                    f"{self._order.starter} has not started a rank yet, after {now - start:.0f} s"
                    + (f"; it waits for {missing}, not joined yet" if missing else "")
                )
                reported = now

    def _is_over(self, gone: bool) -> bool:
        if time.monotonic() >= self._deadline:
            return True
        if not gone:
            has_begun = bool(self._reports) or self._was_ended
            is_done = self._ending and has_begun
            return not self._ranks and (is_done or self._policy.has_succeeded())
        if self._ranks and not self._ending:  # the starter died before its ranks
            self._end(signal.SIGTERM, self._order.failure_seconds)
        return not self._ranks

    def _on_signal(self, signals: socket.socket) -> None:
        number = read_stop_signal(signals)
        if not number or self._stop_signal:
            return
        self._policy.on_stop()  # also while ranks end after a failure: it ends the job
        if not self._ending or self._was_ended:
            self._stop_signal = number

    def _on_policy(self, descriptor: int) -> None:
        """Read what has arrived at the policy's descriptor, until the ranks end or it is closed."""
        if self._check_policy() or self._policy.fileno() < 0:
            self._selector.unregister(descriptor)

    def _check_policy(self) -> bool:
        """End the ranks if the policy says so, and return whether it does."""
        must_end = self._policy.must_end()
        if must_end and not self._ending:
            self._was_ended = True
            self._end(signal.SIGTERM, self._order.failure_seconds)
        return must_end

    def _pass_on(self, starter: subprocess.Popen[bytes]) -> None:
        order = self._order
        seconds = order.stop_seconds if self._ranks else order.failure_seconds
        # before the guards, or torchrun would count the ends of ranks as a failure
        starter.send_signal(self._stop_signal)
        self._end(self._stop_signal, seconds)
        self._print_line(
            f"received {signal_name(self._stop_signal)}; ranks have {seconds:g} s to end"
        )

    def _end(self, number: int, seconds: float) -> None:
        self._ending = True
        self._deadline = time.monotonic() + seconds
        for guard in self._ranks:
            self._send(guard, number)

    def _send(self, guard: socket.socket, number: int) -> None:
        with contextlib.suppress(OSError):
            guard.send(str(int(number)).encode())

    def _on_guard(self, server: socket.socket) -> None:
        guard, _ = server.accept()
        self._selector.register(guard, selectors.EVENT_READ, self._on_message)
        self._ranks[guard] = None

    def _on_message(self, guard: socket.socket) -> None:
        try:
            message = guard.recv(MAX_MESSAGE)
        except OSError:
            message = b""
        if not message:
            self._on_leave(guard)
            return
        try:
            content = parse_message(message)
        except GuardMessageError as error:
            self._print_line(f"a process that is no guard of a rank was disconnected: {error}")
            self._disconnect(guard)
            return
        if isinstance(content, Report):
            self._on_report(guard, content)
            return
        self._ranks[guard] = content
        subject = "the guard" if content is None else f"the guard of rank {content}"
        pid = pid_of(guard)
        self._states[pid] = StateWatch(pid, self._print_line, subject=subject)
        with contextlib.suppress(OSError):
            give_output(guard)
        if self._ending:
            self._send(guard, self._stop_signal or signal.SIGTERM)

    def _on_report(self, guard: socket.socket, report: Report) -> None:
        self._reports[guard] = report
        self._policy.on_end(report, is_stopping=bool(self._stop_signal))
        if report.failed and not self._ending:
            seconds = self._order.failure_seconds
            self._end(signal.SIGTERM, seconds)
            self._policy.on_failure(report)
            who = "the script" if report.rank is None else f"rank {report.rank}"
            self._print_line(
                f"{who} failed; the other processes of this host have {seconds:g} s to end"
            )

    def _on_leave(self, guard: socket.socket) -> None:
        """Handle the closed connection of a guard, the parent process of one rank.

        If the guard has sent no report, record that its rank was killed.
        """
        rank = self._disconnect(guard)
        if guard not in self._reports:
            lost = Report(
                rank=rank,
                status=-signal.SIGKILL,
                at_seconds=time.time(),
                stopped=self._ending,
            )
            self._on_report(guard, lost)

    def _disconnect(self, guard: socket.socket) -> int | None:
        """Close the connection of a guard, and return the number of its rank."""
        self._selector.unregister(guard)
        self._states.pop(pid_of(guard), None)
        guard.close()
        return self._ranks.pop(guard)

    def _outcome(self, status: int) -> Outcome:
        if self._stop_signal:
            return Outcome(status=128 + self._stop_signal, signal=self._stop_signal)
        if self._policy.has_succeeded():
            return Outcome(status=0)
        connected = [each.connected_at for each in self._reports.values() if each.connected_at]
        end = Outcome(
            status=0, was_ended=self._was_ended, connected_at=max(connected, default=None)
        )
        culprit = first_failure(self._reports.values())
        if status > 0 and culprit and culprit.distance == ENDED_ON_REQUEST:
            culprit = None  # the ranks were stopped because the starter had failed
        if culprit:
            culprit = with_left_rank(culprit, self._reports.values(), self._policy.has_left)
            text = describe(culprit, self._order.label)
            fields = fields_of(culprit, self._order.label)
            code = culprit.exit_code
            return replace(end, status=code, failure=text, fields=fields, culprit=culprit)
        if status and not self._was_ended:
            return replace(end, status=exit_status(status), **self._starter_failure(status))
        return end

    def _starter_failure(self, status: int) -> dict[str, Any]:
        """Return text and fields of the failure of a command that failed although no rank did.

        The command's own output is printed, unless its report has an error. `status` is the
        command's exit code, or -n if signal n ended it.
        """
        report = read_report(self._order.directory)
        if report.error:
            place = {"host": self._order.label, "rank": None, "exit_code": exit_status(status)}
            is_secondary = report.fields.get("culprit") is not None
            fields = {**place, "is_secondary": is_secondary, **report.fields}
            text = f"{self._order.label} could not start its ranks: {report.error}"
            return {"failure": shorten(text), "fields": fields}
        tail = (self._order.directory / _LOG).read_bytes()[-_LOG_BYTES:]
        write_whole(2, tail, None, _PRINT_SECONDS)
        error, _ = find_culprit(tail, "")
        how = f"was killed by {signal_name(-status)}" if status < 0 else f"ended with code {status}"
        did = "had to stop" if self._reports else "could not start"
        who = f"{self._order.label} {did} its ranks: {self._order.starter}"
        return {"failure": shorten(f"{who} {how}: {error}")}
