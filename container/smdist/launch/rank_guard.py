# SPDX-License-Identifier: Apache-2.0
"""The rank guard: a small parent process of one rank.

    python -m smdist.launch.rank_guard train.py --epochs 3

torchrun, the task starter or the launcher starts the guard. The guard puts the rank's name before
each line of the rank's output. A signal that the guard receives is sent to the rank, once, and not
to the rank's children (a rank ends its DataLoader workers itself). When the rank has ended, the
guard kills the remaining processes of the rank's process group and sends a report to the launcher.
A rank that is stopped, or does not run for another reason, is named in its output, and so is the
launcher. If the guard is killed, the kernel kills the rank. If the launcher was killed, the guard
ends the rank, or does not start it, and removes the launcher's folder. This module imports little,
to start fast.
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
from smdist.launch.guard_protocol import (
    MAX_ERROR,
    LauncherConnection,
    Report,
    read_connected_at,
    read_fault,
)
from smdist.launch.kernel_state import StateWatch
from smdist.launch.mpi_request import open_mpi_variables
from smdist.launch.nonblocking_writer import BackgroundWriter
from smdist.launch.output_prefix import STARTING, Relay
from smdist.launch.private_folder import remove_if_abandoned
from smdist.launch.process_control import die_with_parent, end_by, signal_socket
from smdist.launch.traceback_parser import find_culprit
from smdist.restart_environment import CONNECTED, torchelastic_variables

_READ_BYTES: Final = 1 << 16
_TAIL_BYTES: Final = 1 << 16
_PAUSE_SECONDS: Final = 0.05
_LAST_OUTPUT_SECONDS: Final = 3.0  # less than the launcher's time limit after a failure
_ORPHAN_SECONDS: Final = 5.0
_LAUNCHER_GONE: Final = 1  # exit status
_DRAIN_SECONDS: Final = 1.0  # limited, since a daemon of the rank may keep its pipes open


@dataclass(slots=True)
class Stream:
    """Stdout or stderr of the rank, which the guard copies to the same stream of the launcher.

    Thread safety: none.

    Attributes:
        source: File descriptor of the pipe that the rank writes to.
        relay: Splits the output into lines and prefixes them.
        writer: Writes the prefixed lines to the launcher's stream.
        on_data: Function called with each piece of output before it is split.
        is_open: False after the end of the output.
    """

    source: int
    relay: Relay
    writer: BackgroundWriter
    on_data: Callable[[bytes], None]
    is_open: bool = True

    def pump(self) -> bool:
        """Read once and queue the complete lines for writing; return False at end of file."""
        data = os.read(self.source, _READ_BYTES)
        self.on_data(data)
        self.writer.put(self.relay.feed(data))
        self.is_open = bool(data)
        return self.is_open

    def finish(self) -> None:
        """Queue a last line that has no line end."""
        self.writer.put(self.relay.finish())


class Guard:
    """Starts one rank, watches it, and reports its end to the launcher. Thread safety: none.

    Args:
        config: The guard's configuration.
        command: The command that runs the rank.
        signals: Socket from which the numbers of this process's signals are read.
        launcher: Connection to the launcher of this host, if there is one.
    """

    def __init__(
        self,
        config: GuardConfig,
        command: Sequence[str],
        signals: socket.socket,
        launcher: LauncherConnection,
    ) -> None:
        self._config = config
        self._signals = signals
        self._launcher = launcher
        self._selector = selectors.DefaultSelector()
        self._tail = bytearray()
        self._passed: set[int] = set()
        self._kill_at = float("inf")
        self._streams: list[Stream] = []
        # in the launcher's folder, if there is one, which is removed even if this guard is killed
        self._folder = Path(config.socket).parent if config.socket else None
        self._scratch = tempfile.TemporaryDirectory(
            prefix="smdist-rank-", dir=self._folder, ignore_cleanup_errors=True
        )
        self._is_orphan = False
        self._fault_file = Path(self._scratch.name, "fault.json")
        self._connected_file = Path(self._scratch.name, CONNECTED)
        self._rank = self._start(command)
        self._states = [StateWatch(self._rank.pid, self._say, config.state_file)]
        if config.is_first and (pid := self._launcher.pid):
            self._states.append(StateWatch(pid, self._say, subject="the launcher of this host"))

    def run(self) -> int:
        """Watch until the rank ends; return its exit code, or -n if signal n ended it."""
        self._watch(self._signals, self._on_signal)
        if self._launcher.socket:
            self._watch(self._launcher.socket, self._on_launcher)
        while self._rank.poll() is None:
            left = min(state.seconds_left for state in self._states)
            self._turn(min(left, self._kill_at - time.monotonic()))
            for state in self._states:
                state.check()
            if time.monotonic() >= self._kill_at:
                self._kill_group()
                self._kill_at = time.monotonic() + 1.0
        report = Report(
            rank=self._config.rank,
            status=self._rank.returncode,
            at_seconds=time.time(),
            stopped=bool(self._passed),
            connected_at=read_connected_at(self._connected_file),
        )
        self._kill_group()
        self._drain()
        # before the report, so that the launcher's line on the rank's end follows its output
        self._write_out(_DRAIN_SECONDS)
        self._launcher.send_report(self._with_culprit(report).encode())
        self._finish_output()
        self._scratch.cleanup()
        if self._is_orphan:
            self._remove_folder()
        return int(self._rank.returncode)

    def _start(self, command: Sequence[str]) -> subprocess.Popen[bytes]:
        directory, environ = self._config.directory, dict(self._config.inherited)
        if directory:
            path = [directory, environ.get("PYTHONPATH", "")]
            environ["PYTHONPATH"] = os.pathsep.join(filter(None, path))
        environ["SMDIST_FAULT_FILE"] = str(self._fault_file)
        environ.update(torchelastic_variables(environ))
        environ.update(open_mpi_variables(environ))
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
        writers = [
            BackgroundWriter(target, self._launcher.lock) for target in self._launcher.output
        ]
        out, err = Relay(self._name), Relay(self._name, without)
        self._add(Stream(rank.stdout.fileno(), out, writers[0], lambda _: None))
        self._add(Stream(rank.stderr.fileno(), err, writers[1], self._remember))
        return rank

    def _say(self, text: str) -> None:
        """Write a line of this process among the lines of the rank."""
        self._streams[1].writer.put(f"[{self._name}] {text}\n".encode())

    @property
    def _name(self) -> str:
        number = self._config.rank
        return self._config.host_label + ("" if number is None else f" rank {number}")

    def _add(self, stream: Stream) -> None:
        self._streams.append(stream)
        self._watch(stream.source, partial(self._pump, stream))

    def _pump(self, stream: Stream) -> None:
        if not stream.pump() or stream.writer.is_full:
            self._selector.unregister(stream.source)

    def _resume(self, *, full: bool = False) -> bool:
        """Read again from the rank's streams that were paused because their queue was full.

        With `full`, read even if the queue is still full. Return True if any was paused.
        """
        waiting = [s for s in self._streams if s.is_open and not self._reads(s)]
        for stream in waiting:
            if full or not stream.writer.is_full:
                self._watch(stream.source, partial(self._pump, stream))
        return bool(waiting)

    def _reads(self, stream: Stream) -> bool:
        return stream.source in self._selector.get_map()

    def _watch(self, source: socket.socket | int, act: Callable[[], None]) -> None:
        self._selector.register(source, selectors.EVENT_READ, act)

    def _turn(self, timeout_seconds: float) -> None:
        """Wait for output, a signal or a message, at most `timeout_seconds`, and handle it."""
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

    def _on_launcher(self) -> None:
        number = self._launcher.receive_signal()
        if number is None:  # the launcher has ended
            assert self._launcher.socket
            self._selector.unregister(self._launcher.socket)
            self._is_orphan = True
            if signal.SIGTERM in self._passed:  # the rank has had SIGTERM already: kill it soon
                self._kill_at = min(self._kill_at, time.monotonic() + _ORPHAN_SECONDS)
        self._pass_on(number or signal.SIGTERM)

    def _pass_on(self, number: int) -> None:
        """Send a signal to the rank, once; kill the rank if it still runs `stop_seconds` later."""
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
        """Read all data left in the rank's pipes, even if the writers' queues are full."""
        deadline = time.monotonic() + _DRAIN_SECONDS
        while any(stream.is_open for stream in self._streams) and time.monotonic() < deadline:
            self._resume(full=True)
            self._turn(deadline - time.monotonic())
        for stream in self._streams:
            if self._reads(stream):
                self._selector.unregister(stream.source)
            stream.finish()

    def _write_out(self, seconds: float) -> bool:
        """Wait at most `seconds` until all output is written; return True if all is."""
        deadline = time.monotonic() + seconds
        return all(s.writer.wait(deadline - time.monotonic()) for s in self._streams)

    def _finish_output(self) -> None:
        """Wait until all output is written; if the job is being stopped, at most 3 seconds."""
        give_up = float("inf")
        while not self._write_out(_PAUSE_SECONDS) and time.monotonic() < give_up:
            self._turn(0.0)
            if self._passed:
                give_up = min(give_up, time.monotonic() + _LAST_OUTPUT_SECONDS)

    def _remove_folder(self) -> None:
        """Remove the folder of the launcher, which was killed and could not remove it."""
        deadline = time.monotonic() + _DRAIN_SECONDS
        while self._folder and not remove_if_abandoned(self._folder):
            if time.monotonic() > deadline:
                return
            time.sleep(_PAUSE_SECONDS)

    def _with_culprit(self, report: Report) -> Report:
        if not report.status:
            return report
        error, frame = find_culprit(bytes(self._tail), self._config.directory or "")
        fault = read_fault(self._fault_file)
        return replace(report, error=error[:MAX_ERROR], frame=frame[:MAX_ERROR], fault=fault)


def main() -> None:
    """Run the script named on the command line as a child process; exit with the child's status.

    A guard whose launcher was killed before starts nothing: no process would end its rank.
    """
    config = read_guard_config()
    with signal_socket(signal.SIGTERM, signal.SIGINT, signal.SIGCHLD) as signals:
        launcher = LauncherConnection(config.socket, config.rank)
        if launcher.has_ended:
            remove_if_abandoned(Path(config.socket or "").parent)
            sys.exit(_LAUNCHER_GONE)
        status = Guard(config, [sys.executable, *sys.argv[1:]], signals, launcher).run()
    if status < 0:
        end_by(-status)
    sys.exit(status)


if __name__ == "__main__":
    main()
