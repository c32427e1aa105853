# SPDX-License-Identifier: Apache-2.0
"""The rank guard: a small parent process of one rank, started by torchrun.

    python -m smdist.launch.rank_guard train.py --epochs 3

The guard prefixes every line of output, passes a signal on exactly once and to the rank alone
(the rank ends its own DataLoader workers), reports how the rank ended, and kills what is left of
the rank's process group. If the guard is killed, the kernel kills the rank. Imports little, to
start fast.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Final

from smdist.config import GuardConfig, read_guard_config
from smdist.launch.guard_protocol import GuardCall
from smdist.launch.nonblocking_writer import Outlet
from smdist.launch.output_prefix import STARTING, Relay
from smdist.launch.process_control import die_with_parent, end_by, hear_signals
from smdist.launch.rank_report import MAX_ERROR, Report, read_fault
from smdist.launch.traceback_parser import find_culprit

_READ_BYTES: Final = 1 << 16
_TAIL_BYTES: Final = 1 << 16
_PAUSE_SECONDS: Final = 0.05
_SEE_OFF_SECONDS: Final = 3.0  # less than the launcher's time limit after a failure
_ORPHAN_SECONDS: Final = 5.0
_DRAIN_SECONDS: Final = 1.0  # a daemon of the rank may keep its pipes open forever


@dataclass(slots=True)
class Stream:
    """One output stream of the rank. Thread safety: none.

    Attributes:
        also: Called with the data read, besides the writer.
    """

    source: int
    relay: Relay
    outlet: Outlet
    also: Callable[[bytes], None]
    is_open: bool = True

    def pump(self) -> bool:
        """Read once and pass the data on; return False at end of file."""
        data = os.read(self.source, _READ_BYTES)
        self.also(data)
        self.outlet.put(self.relay.feed(data))
        self.is_open = bool(data)
        return self.is_open

    def finish(self) -> None:
        """Pass on a last line without a line end."""
        self.outlet.put(self.relay.finish())


class Guard:
    """Watch one rank from its start to its report. Thread safety: none."""

    def __init__(self, config: GuardConfig, command: Sequence[str], signals: socket.socket) -> None:
        self._config = config
        self._signals = signals
        self._call = GuardCall(config.socket, config.rank)
        self._selector = selectors.DefaultSelector()
        self._tail = bytearray()
        self._passed: set[int] = set()
        self._kill_at = float("inf")
        self._streams: list[Stream] = []
        self._scratch = tempfile.TemporaryDirectory(prefix="smdist-rank-")
        self._fault_file = Path(self._scratch.name, "fault.json")
        self._rank = self._start(command)

    def run(self) -> int:
        """Watch until the rank ends; return its status as `Popen` gives it."""
        self._watch(self._signals, self._on_signal)
        if self._call.socket:
            self._watch(self._call.socket, self._on_call)
        while self._rank.poll() is None:
            self._turn(self._kill_at - time.monotonic())
            if time.monotonic() >= self._kill_at:
                self._kill_group()
                self._kill_at = time.monotonic() + 1.0
        report = Report(
            rank=self._config.rank,
            status=self._rank.returncode,
            at_seconds=time.time(),
            stopped=bool(self._passed),
        )
        self._kill_group()
        self._drain()
        self._write_out(
            _DRAIN_SECONDS
        )  # the rank's output comes before the launcher's line about its end
        self._call.tell(self._with_culprit(report).encode())
        self._see_off()
        self._scratch.cleanup()
        return int(self._rank.returncode)

    def _start(self, command: Sequence[str]) -> subprocess.Popen[bytes]:
        directory, environ = self._config.directory, dict(self._config.inherited)
        if directory:
            path = [directory, environ.get("PYTHONPATH", "")]
            environ["PYTHONPATH"] = os.pathsep.join(filter(None, path))
        environ["SMDIST_FAULT_FILE"] = str(self._fault_file)
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
        without = STARTING if self._config.is_quiet else None
        outlets = [Outlet(target, self._call.lock) for target in self._call.output]
        out, err = Relay(self._name), Relay(self._name, without)
        self._add(Stream(rank.stdout.fileno(), out, outlets[0], lambda _: None))
        self._add(Stream(rank.stderr.fileno(), err, outlets[1], self._remember))
        return rank

    @property
    def _name(self) -> str:
        number = self._config.rank
        return self._config.host_label + ("" if number is None else f" rank {number}")

    def _add(self, stream: Stream) -> None:
        self._streams.append(stream)
        self._watch(stream.source, partial(self._pump, stream))

    def _pump(self, stream: Stream) -> None:
        if not stream.pump() or stream.outlet.is_full:
            self._selector.unregister(stream.source)

    def _resume(self, *, full: bool = False) -> bool:
        """Read streams again that waited for their reader; return whether one still waits."""
        waiting = [s for s in self._streams if s.is_open and not self._reads(s)]
        for stream in waiting:
            if full or not stream.outlet.is_full:
                self._watch(stream.source, partial(self._pump, stream))
        return bool(waiting)

    def _reads(self, stream: Stream) -> bool:
        return stream.source in self._selector.get_map()

    def _watch(self, source: socket.socket | int, act: Callable[[], None]) -> None:
        self._selector.register(source, selectors.EVENT_READ, act)

    def _turn(self, timeout_seconds: float) -> None:
        """Wait for an event and act on it."""
        seconds = min(timeout_seconds, _PAUSE_SECONDS) if self._resume() else timeout_seconds
        wait = None if seconds == float("inf") else max(0.0, seconds)
        for key, _ in self._selector.select(wait):
            key.data()

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
            if signal.SIGTERM in self._passed:  # SIGTERM was passed on already; end the rank
                self._kill_at = min(self._kill_at, time.monotonic() + _ORPHAN_SECONDS)
        self._pass_on(number or signal.SIGTERM)

    def _pass_on(self, number: int) -> None:
        """Pass a signal on, once; from then on the time limit of a stop counts."""
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
        """Read the data left in the rank's pipes, whether or not it can be written yet."""
        deadline = time.monotonic() + _DRAIN_SECONDS
        while any(stream.is_open for stream in self._streams) and time.monotonic() < deadline:
            self._resume(full=True)
            self._turn(deadline - time.monotonic())
        for stream in self._streams:
            if self._reads(stream):
                self._selector.unregister(stream.source)
            stream.finish()

    def _write_out(self, seconds: float) -> bool:
        """Wait until all output is written; return False after `seconds`."""
        deadline = time.monotonic() + seconds
        return all(s.outlet.wait(deadline - time.monotonic()) for s in self._streams)

    def _see_off(self) -> None:
        """Wait for a slow reader, at most as long as a stop allows."""
        give_up = float("inf")
        while not self._write_out(_PAUSE_SECONDS) and time.monotonic() < give_up:
            self._turn(0.0)
            if self._passed:
                give_up = min(give_up, time.monotonic() + _SEE_OFF_SECONDS)

    def _with_culprit(self, report: Report) -> Report:
        if not report.status:
            return report
        error, frame = find_culprit(bytes(self._tail), self._config.directory or "")
        fault = read_fault(self._fault_file)
        return replace(report, error=error[:MAX_ERROR], frame=frame[:MAX_ERROR], fault=fault)


def main() -> None:
    """Guard the script named on the command line, and end with its status."""
    config = read_guard_config()
    with hear_signals(signal.SIGTERM, signal.SIGINT, signal.SIGCHLD) as signals:
        status = Guard(config, [sys.executable, *sys.argv[1:]], signals).run()
    if status < 0:
        end_by(-status)
    sys.exit(status)


if __name__ == "__main__":
    main()
