# SPDX-License-Identifier: Apache-2.0
"""Program that starts a host's TensorFlow processes, each under a guard, and waits for them.

    python -m smdist.launch.task_starter tasks.json

This program sends no signals to the processes: the launcher sends signals to the guards directly,
and the guards report to the launcher.

For `parameter_server`, this program on the first host also has a connection to each TensorFlow
server of the job. When the script has ended, it sends the script's result to all servers, which
then end. If a connection closes earlier, this program fails and so ends the job, because
TensorFlow would wait for a lost server forever.
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
from smdist.launch.guard_protocol import exit_status
from smdist.launch.process_control import die_with_parent, signal_socket
from smdist.launch.tf_tasks import Task, Tasks

Running = tuple[Task, subprocess.Popen[bytes]]

_TICK_SECONDS: Final = 0.1
_LATE_SECONDS: Final = 30.0  # wait for servers that connect after the script has ended


class ServerConnections:
    """Listener that TensorFlow servers connect to, and that tells them how the script ended.

    `port` is the port to listen on. `num_servers` is the number of servers in the job. Thread
    safety: none.
    """

    def __init__(self, port: int, num_servers: int) -> None:
        both = socket.has_dualstack_ipv6()
        family = socket.AF_INET6 if both else socket.AF_INET
        self._listener = socket.create_server(("", port), family=family, dualstack_ipv6=both)
        self._listener.setblocking(False)
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._listener, selectors.EVENT_READ)
        self._names: dict[socket.socket, str] = {}
        self._left = num_servers
        self._result = b""

    def close(self) -> None:
        """Close all connections and the listening socket."""
        self._selector.close()
        for each in (*self._names, self._listener):
            each.close()

    def wait(self, seconds: float) -> str:
        """Handle new connections and messages for at most `seconds`.

        Return the name of a server whose connection was lost, such as "algo-2 ps 1", else "".
        """
        for key, _ in self._selector.select(seconds):
            caller = key.fileobj
            assert isinstance(caller, socket.socket)
            if caller is self._listener:
                self._accept()
            elif lost := self._receive(caller):
                return lost
        return ""

    def send_result(self, result: bytes) -> None:
        """Send the script's result, ENDED or FAILED, to all TensorFlow servers of the job.

        A TensorFlow server that connects later receives the result when it connects.
        """
        self._result = result
        for caller in list(self._names):
            if self._names[caller]:
                self._send(caller)

    def wait_for_late_servers(self, seconds: float) -> None:
        """Wait until every TensorFlow server has been sent the result, for at most `seconds`."""
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

    def _receive(self, caller: socket.socket) -> str:
        try:
            line = caller.recv(MAX_LINE).decode("utf-8", "replace")
        except OSError:
            line = ""
        name = self._names[caller]
        if not name and line.startswith(HELLO):
            self._names[caller] = line.removeprefix(HELLO).strip()
            if self._result:
                self._send(caller)
            return ""
        self._drop(caller)  # not one of our servers, or a server that has ended
        return name

    def _send(self, caller: socket.socket) -> None:
        with contextlib.suppress(OSError):
            caller.send(self._result)  # a few bytes, which fit into the kernel's buffer
        self._left -= 1
        self._drop(caller)

    def _drop(self, caller: socket.socket) -> None:
        del self._names[caller]
        self._selector.unregister(caller)
        caller.close()


def main() -> int:
    """Start the TensorFlow processes listed in the file `sys.argv[1]`, and wait for them.

    Return the exit status of the first process that failed; 0 if none failed.
    """
    tasks = Tasks.read(Path(sys.argv[1]))
    environ = read_guard_config().inherited
    with signal_socket(signal.SIGTERM, signal.SIGINT, signal.SIGCHLD):
        servers = None
        if tasks.result_port is not None:
            servers = ServerConnections(tasks.result_port, tasks.num_servers)
        running = [(task, _start(task, environ)) for task in tasks.each]
        return _wait_for_all(running, servers)


def _start(task: Task, environ: Mapping[str, str]) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        task.command,
        env={**environ, **task.environ},
        stdin=subprocess.DEVNULL,
        preexec_fn=die_with_parent(signal.SIGTERM),
    )


def _wait_for_all(running: list[Running], servers: ServerConnections | None) -> int:
    """Wait until all processes have ended, and return 0.

    If a process fails, return its exit status at once. The other processes then end together with
    this one.

    Args:
        running: The tasks that were started, each with its process.
        servers: Connections of TensorFlow's servers; None if the job has no servers, and on all
            hosts but the first.
    """
    while True:
        failed = next((exit_status(status) for _, each in running if (status := each.poll())), 0)
        if servers is not None and (failed or _has_ended(running)):
            servers.send_result(FAILED if failed else ENDED)
        if failed:
            return failed
        if all(each.poll() == 0 for _, each in running):
            break
        if servers is None:
            time.sleep(_TICK_SECONDS)
        elif lost := servers.wait(_TICK_SECONDS):
            sys.stderr.write(f"PeerError: the connection to the server {lost} was lost\n")
            servers.send_result(FAILED)
            return 1
    if servers is not None:
        servers.wait_for_late_servers(_LATE_SECONDS)
    return 0


def _has_ended(running: list[Running]) -> bool:
    """Return True if the script's process on this host has ended.

    That is so when all tasks except TensorFlow's servers have ended.
    """
    return all(process.poll() is not None for task, process in running if not task.is_server)


if __name__ == "__main__":
    sys.exit(main())
