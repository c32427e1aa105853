# SPDX-License-Identifier: Apache-2.0
"""The rank guard: the small parent of one rank, started by torchrun.

    python -m smdist.launch.rank train.py --epochs 3

It names every line of output, passes a signal on exactly once and to the rank
alone (its DataLoader workers are the rank's own business), reports how the rank
ended, and leaves nothing of the rank's process group behind. If the guard is
killed the kernel kills the rank. Imports little, to start fast.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from typing import Final

from smdist.config import GuardConfig, read_guard_config
from smdist.launch.culprit import find_culprit
from smdist.launch.link import Call
from smdist.launch.processes import die_with_parent, end_by, hear_signals
from smdist.launch.relay import Relay, write_whole
from smdist.launch.report import MAX_ERROR, Report

_READ_BYTES: Final = 1 << 16
_TAIL_BYTES: Final = 1 << 16
_DRAIN_SECONDS: Final = 1.0  # a daemon of the rank may hold its pipes open forever


class Guard:
    """Watches one rank from its start to its report. Thread safety: none."""

    def __init__(self, config: GuardConfig, command: Sequence[str], signals: socket.socket) -> None:
        self._config = config
        self._signals = signals
        self._call = Call(config.socket, config.rank)
        self._selector = selectors.DefaultSelector()
        self._tail = bytearray()
        self._passed: set[int] = set()
        self._kill_at = float("inf")
        self._flush: list[Callable[[], None]] = []
        self._rank = self._start(command)

    def run(self) -> int:
        """Watch until the rank ends; return its status as `Popen` has it."""
        self._watch(self._signals, self._on_signal)
        if self._call.socket:
            self._watch(self._call.socket, self._on_call)
        while self._rank.poll() is None:
            self._turn(self._kill_at - time.monotonic())
            if time.monotonic() >= self._kill_at:
                self._kill_group()
                self._kill_at = time.monotonic() + 1.0
        ended_at_seconds = time.time()
        self._kill_group()
        self._drain()
        self._call.tell(self._report(self._rank.returncode, ended_at_seconds).encode())
        return int(self._rank.returncode)

    def _start(self, command: Sequence[str]) -> subprocess.Popen[bytes]:
        directory, environ = self._config.directory, dict(self._config.inherited)
        if directory:
            path = [directory, environ.get("PYTHONPATH", "")]
            environ["PYTHONPATH"] = os.pathsep.join(filter(None, path))
        rank = subprocess.Popen(
            command,
            env=environ,
            cwd=directory,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
            preexec_fn=die_with_parent(signal.SIGKILL),
        )
        assert rank.stdout
        assert rank.stderr
        self._relay(rank.stdout.fileno(), self._call.output[0], lambda _: None)
        self._relay(rank.stderr.fileno(), self._call.output[1], self._remember)
        return rank

    def _relay(self, source: int, target: int, also: Callable[[bytes], None]) -> None:
        number = self._config.rank
        relay = Relay(self._config.host_label + ("" if number is None else f" rank {number}"))

        def pump() -> None:
            data = os.read(source, _READ_BYTES)
            also(data)
            write_whole(target, relay.feed(data), self._call.lock)
            if not data:
                self._selector.unregister(source)

        self._flush.append(lambda: write_whole(target, relay.finish(), self._call.lock))
        self._watch(source, pump)

    def _watch(self, source: socket.socket | int, act: Callable[[], None]) -> None:
        self._selector.register(source, selectors.EVENT_READ, act)

    def _turn(self, timeout_seconds: float) -> bool:
        """Wait for something and act on it; False when nothing came."""
        wait = None if timeout_seconds == float("inf") else max(0.0, timeout_seconds)
        ready = self._selector.select(wait)
        for key, _ in ready:
            key.data()
        return bool(ready)

    def _remember(self, data: bytes) -> None:
        self._tail += data
        del self._tail[:-_TAIL_BYTES]

    def _on_signal(self) -> None:
        for number in self._signals.recv(_READ_BYTES):
            if number != signal.SIGCHLD:
                self._pass_on(number)

    def _on_call(self) -> None:
        number = self._call.hear()
        if number is None:  # the launcher is gone
            assert self._call.socket
            self._selector.unregister(self._call.socket)
        self._pass_on(number or signal.SIGTERM)

    def _pass_on(self, number: int) -> None:
        """Once for each signal; from then on the rank's time is counted."""
        if number in self._passed:
            return
        self._passed.add(number)
        self._kill_at = min(self._kill_at, time.monotonic() + self._config.stop_seconds)
        if self._rank.poll() is None:
            self._rank.send_signal(number)

    def _kill_group(self) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._rank.pid, signal.SIGKILL)

    def _drain(self) -> None:
        """Read what the rank left in its pipes."""
        for source in (self._signals, self._call.socket):
            if source and source in self._selector.get_map():
                self._selector.unregister(source)
        deadline = time.monotonic() + _DRAIN_SECONDS
        while self._selector.get_map() and self._turn(deadline - time.monotonic()):
            continue
        for flush in self._flush:
            flush()

    def _report(self, status: int, at_seconds: float) -> Report:
        error, frame = "", ""
        if status:
            error, frame = find_culprit(bytes(self._tail), self._config.directory or "")
        return Report(
            rank=self._config.rank,
            status=status,
            at_seconds=at_seconds,
            stopped=bool(self._passed),
            error=error[:MAX_ERROR],
            frame=frame[:MAX_ERROR],
        )


def main() -> None:
    """Guard the script that the command line names, and end as it ended."""
    config = read_guard_config()
    with hear_signals(signal.SIGTERM, signal.SIGINT, signal.SIGCHLD) as signals:
        status = Guard(config, [sys.executable, *sys.argv[1:]], signals).run()
    if status < 0:
        end_by(-status)
    sys.exit(status)


if __name__ == "__main__":
    main()
