# SPDX-License-Identifier: Apache-2.0
"""Start a host's processes of TensorFlow, each under a guard, and wait for them.

    python -m smdist.launch.task_starter tasks.json

Ranks find each other by themselves, and the guards report to the launcher, so this process only
waits. It passes no signals on, since the guards get them from the launcher.

With servers, the first host's starter also keeps a connection to every server of the job. It
reports the end of the script to them. A connection that is lost earlier ends the job here, since
TensorFlow would wait for the server to come back.
"""

from __future__ import annotations

import contextlib
import selectors
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from smdist.config import read_guard_config
from smdist.dataparallel.task_server_protocol import ENDED, FAILED, HELLO, MAX_LINE
from smdist.launch.process_control import die_with_parent, hear_signals
from smdist.launch.rank_report import exit_status
from smdist.launch.tf_tasks import Task, Tasks

Running = tuple[Task, subprocess.Popen[bytes]]

_TICK_SECONDS: Final = 0.1
_LATE_SECONDS: Final = 30.0  # for servers that connect after the script has ended


class Bell:
    """Connections to the servers, to report the script's end. Thread safety: none."""

    def __init__(self, port: int, num_servers: int) -> None:
        both = socket.has_dualstack_ipv6()
        family = socket.AF_INET6 if both else socket.AF_INET
        self._listener = socket.create_server(("", port), family=family, dualstack_ipv6=both)
        self._listener.setblocking(False)
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._listener, selectors.EVENT_READ)
        self._names: dict[socket.socket, str] = {}
        self._left = num_servers
        self._last = b""

    def close(self) -> None:
        """Close all connections."""
        self._selector.close()
        for each in (*self._names, self._listener):
            each.close()

    def wait(self, seconds: float) -> str:
        """Accept connections; return the name of a server that was lost, or ""."""
        for key, _ in self._selector.select(seconds):
            caller = key.fileobj
            assert isinstance(caller, socket.socket)
            if caller is self._listener:
                self._accept()
            elif lost := self._hear(caller):
                return lost
        return ""

    def ring(self, word: bytes) -> None:
        """Send the result to all servers, also to those that connect later."""
        self._last = word
        for caller in list(self._names):
            if self._names[caller]:
                self._tell(caller)

    def linger(self, seconds: float) -> None:
        """Wait a while for servers that have not connected yet, and send them the result."""
        deadline = time.monotonic() + seconds
        while self._left > 0 and time.monotonic() < deadline:
            self.wait(_TICK_SECONDS)

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            caller, _ = self._listener.accept()
            caller.setblocking(False)
            caller.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            caller.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 30)
            self._names[caller] = ""
            self._selector.register(caller, selectors.EVENT_READ)

    def _hear(self, caller: socket.socket) -> str:
        try:
            line = caller.recv(MAX_LINE).decode("utf-8", "replace")
        except OSError:
            line = ""
        name = self._names[caller]
        if not name and line.startswith(HELLO):
            self._names[caller] = line.removeprefix(HELLO).strip()
            if self._last:
                self._tell(caller)
            return ""
        self._drop(caller)  # a stranger, or a server that is gone
        return name

    def _tell(self, caller: socket.socket) -> None:
        with contextlib.suppress(OSError):
            caller.send(self._last)  # a few bytes, which fit into the kernel's buffer
        self._left -= 1
        self._drop(caller)

    def _drop(self, caller: socket.socket) -> None:
        del self._names[caller]
        self._selector.unregister(caller)
        caller.close()


def main() -> int:
    """Start the listed tasks; return the status of the first that failed, or 0."""
    tasks = Tasks.read(Path(sys.argv[1]))
    environ = read_guard_config().inherited
    with hear_signals(signal.SIGTERM, signal.SIGINT, signal.SIGCHLD):
        bell = None if tasks.bell_port is None else Bell(tasks.bell_port, tasks.num_servers)
        running = [(task, _start(task, environ)) for task in tasks.each]
        return _see_off(running, bell)


def _start(task: Task, environ: Mapping[str, str]) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        task.command,
        env={**environ, **task.environ},
        stdin=subprocess.DEVNULL,
        preexec_fn=die_with_parent(signal.SIGTERM),
    )


def _see_off(running: list[Running], bell: Bell | None) -> int:
    """Wait for all tasks; the first failure ends this process and the other tasks."""
    while True:
        failed = next((exit_status(status) for _, each in running if (status := each.poll())), 0)
        if bell is not None and (failed or _has_ended(running)):
            bell.ring(FAILED if failed else ENDED)
        if failed:
            return failed
        if all(each.poll() == 0 for _, each in running):
            break
        if bell is None:
            time.sleep(_TICK_SECONDS)
        elif lost := bell.wait(_TICK_SECONDS):
            sys.stderr.write(f"PeerError: {lost} is gone\n")
            bell.ring(FAILED)
            return 1
    if bell is not None:
        bell.linger(_LATE_SECONDS)
    return 0


def _has_ended(running: list[Running]) -> bool:
    """Tell whether the script has ended; the other tasks are its servers."""
    return all(process.poll() is not None for task, process in running if not task.is_server)


if __name__ == "__main__":
    sys.exit(main())
