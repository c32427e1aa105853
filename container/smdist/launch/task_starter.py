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
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from sagemaker_dist.contract import DataParallel
from smdist.config import read_guard_config, read_rank_config, read_secret_variables
from smdist.dataparallel.rendezvous.secret import read_secret
from smdist.dataparallel.task_server_protocol import ENDED, FAILED, MAX_LINE, Greeting, watch_host
from smdist.launch.guard_protocol import exit_status
from smdist.launch.process_control import die_with_parent, signal_socket
from smdist.launch.tf_tasks import Task, Tasks

Running = tuple[Task, subprocess.Popen[bytes]]

_TICK_SECONDS: Final = 0.1
_MAX_UNPROVEN: Final = 64  # connections that have not proven the secret yet
_PROOF_SECONDS: Final = 15.0  # time limit of a new connection to prove the secret
_LATE_SECONDS: Final = 30.0  # wait for servers that connect after the script has ended


@dataclass(slots=True)
class Caller:
    """Connection of a process that is, or claims to be, a TensorFlow server of the job.

    Attributes:
        connection: Socket of the connection.
        greeting: Greeting by which the process proves that it has the job's secret.
        deadline: Time on the monotonic clock at which it is dropped without this proof.
        received: Bytes of a line that has not ended yet.
        has_name: True once the process has sent its name.
        is_proven: True once the process has proven that it has the secret.
    """

    connection: socket.socket
    greeting: Greeting
    deadline: float
    received: bytes = b""
    has_name: bool = False
    is_proven: bool = False


class ServerConnections:
    """Listener that TensorFlow servers connect to, and that tells them how the script ended.

    A process that does not have the job's secret gets no result, and its end means nothing.
    Thread safety: none.

    Args:
        address: IP address to listen at; "" for all addresses of this host.
        port: Port to listen at.
        num_servers: Number of TensorFlow servers in the job.
        secret: Secret of the job; empty if it has none.
        silence_seconds: Seconds after which a host that answers nothing counts as lost.
    """

    def __init__(
        self,
        address: str,
        port: int,
        num_servers: int,
        secret: bytes,
        silence_seconds: int = DataParallel().silence_seconds,
    ) -> None:
        both = not address and socket.has_dualstack_ipv6()
        family = socket.AF_INET6 if both else socket.AF_INET
        self._listener = socket.create_server(
            (address, port), family=family, backlog=socket.SOMAXCONN, dualstack_ipv6=both
        )
        self._listener.setblocking(False)
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._listener, selectors.EVENT_READ)
        self._callers: dict[socket.socket, Caller] = {}
        self._num_servers = num_servers
        self._left = num_servers
        self._secret = secret
        self._silence_seconds = silence_seconds
        self._result = b""

    def close(self) -> None:
        """Close all connections and the listening socket."""
        self._selector.close()
        for each in (*self._callers, self._listener):
            each.close()

    def wait(self, seconds: float) -> str:
        """Handle new connections and messages for at most `seconds`.

        Return the name of a server whose connection was lost, such as "algo-2 ps 1", else "".
        """
        for key, _ in self._selector.select(seconds):
            source = key.fileobj
            assert isinstance(source, socket.socket)
            if source is self._listener:
                self._accept()
            elif source in self._callers and (lost := self._receive(self._callers[source])):
                return lost
        for caller in self._unproven():
            if time.monotonic() >= caller.deadline:
                self._drop(caller)
        return ""

    def send_result(self, result: bytes) -> None:
        """Send the script's result, ENDED or FAILED, to all TensorFlow servers of the job.

        A TensorFlow server that connects later receives the result when it connects.
        """
        self._result = result
        for caller in list(self._callers.values()):
            if caller.is_proven:
                self._send(caller)

    def wait_for_late_servers(self, seconds: float) -> None:
        """Wait until every TensorFlow server has been sent the result, for at most `seconds`."""
        deadline = time.monotonic() + seconds
        while self._left > 0 and time.monotonic() < deadline:
            self.wait(_TICK_SECONDS)

    def _unproven(self) -> list[Caller]:
        """Return the connections that have not proven the secret, the oldest first."""
        return [caller for caller in self._callers.values() if not caller.is_proven]

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            connection, _ = self._listener.accept()
            connection.setblocking(False)
            watch_host(connection, self._silence_seconds)
            if len(unproven := self._unproven()) >= max(_MAX_UNPROVEN, self._num_servers):
                self._drop(unproven[0])  # a server of the job connects again
            deadline = time.monotonic() + _PROOF_SECONDS
            caller = Caller(connection, Greeting(self._secret), deadline)
            self._callers[connection] = caller
            self._selector.register(connection, selectors.EVENT_READ)

    def _receive(self, caller: Caller) -> str:
        """Read from a connection; return the server's name if a proven server was lost, else ""."""
        try:
            part = caller.connection.recv(MAX_LINE)
        except BlockingIOError:
            return ""
        except OSError:
            part = b""
        caller.received += part
        if caller.is_proven or not part or len(caller.received) > MAX_LINE:
            self._drop(caller)  # a proven server sends nothing more: it has ended
            return caller.greeting.name if caller.is_proven else ""
        while b"\n" in caller.received and caller.connection in self._callers:
            line, _, caller.received = caller.received.partition(b"\n")
            self._on_line(caller, line)
        return ""

    def _on_line(self, caller: Caller, line: bytes) -> None:
        if not caller.has_name:
            reply = caller.greeting.starter_line(line)
            caller.has_name = True
            if reply is None:
                self._drop(caller)
                return
            with contextlib.suppress(OSError):
                caller.connection.send(reply)  # a few bytes, which fit into the kernel's buffer
            return
        caller.is_proven = caller.greeting.is_proven(line)
        if not caller.is_proven:
            self._drop(caller)
        elif self._result:
            self._send(caller)

    def _send(self, caller: Caller) -> None:
        with contextlib.suppress(OSError):
            caller.connection.send(self._result)
        self._left -= 1
        self._drop(caller)

    def _drop(self, caller: Caller) -> None:
        del self._callers[caller.connection]
        self._selector.unregister(caller.connection)
        caller.connection.close()


def main() -> int:
    """Start the TensorFlow processes listed in the file `sys.argv[1]`, and wait for them.

    Return the exit status of the first process that failed; 0 if none failed.
    """
    tasks = Tasks.read(Path(sys.argv[1]))
    environ = read_guard_config().inherited
    with signal_socket(signal.SIGTERM, signal.SIGINT, signal.SIGCHLD):
        servers = None
        if tasks.result_port is not None:
            secret = read_secret(*read_secret_variables()) or b""
            place = (tasks.result_address, tasks.result_port)
            servers = ServerConnections(
                *place, tasks.num_servers, secret, read_rank_config().silence_seconds
            )
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
