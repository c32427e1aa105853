# SPDX-License-Identifier: Apache-2.0
"""Protocol between the launcher and its rank guards: a Unix socket, one message a packet.

    guard                                launcher
    ├── {"rank": 3}                 ──▶  the rank starts
    ◀── "output" + two descriptors  ──┤  stdout and stderr for the rank
    ◀── "15"                        ──┤  pass this signal on, once
    ├── Report                      ──▶  how the rank ended
    └── end of file                 ──▶  without a report: the guard was killed

End of file at the guard means that the launcher is gone. The output travels as file descriptors,
because torchrun's own output is kept apart.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from smdist.launch.rank_report import MAX_ERROR

SOCKET: Final = "guards.sock"
LOCK: Final = "output.lock"
MAX_MESSAGE: Final = 16 * MAX_ERROR  # JSON may spell one character in up to twelve bytes
_OUTPUT: Final = b"output"
_ANSWER_SECONDS: Final = 30.0


def listen(directory: Path) -> socket.socket:
    """Open the launcher's socket, for any number of guards."""
    server = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with _short(directory / SOCKET) as name:
        server.bind(name)
    server.listen(1024)
    (directory / LOCK).touch()
    return server


@contextlib.contextmanager
def _short(path: Path) -> Iterator[str]:
    """Yield a name for any path that fits the kernel's 107 bytes for a socket address."""
    directory = os.open(path.parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{directory}/{path.name}"
    finally:
        os.close(directory)


def give_output(guard: socket.socket) -> None:
    """Send the launcher's stdout and stderr to a guard that has connected."""
    socket.send_fds(guard, [_OUTPUT], [1, 2])


class GuardCall:
    """The guard's end of the socket; without a launcher the guard keeps its own output."""

    def __init__(self, address: str | None, rank: int | None) -> None:
        self.output = (1, 2)
        self.lock: Path | None = None
        self._socket: socket.socket | None = None
        if address:
            with contextlib.suppress(OSError):
                self._connect(address, rank)

    def _connect(self, address: str, rank: int | None) -> None:
        caller = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        caller.settimeout(_ANSWER_SECONDS)
        with _short(Path(address)) as name:
            caller.connect(name)
        self._socket = caller
        caller.send(json.dumps({"rank": rank}).encode())
        _, descriptors, _, _ = socket.recv_fds(caller, MAX_MESSAGE, 2)
        if len(descriptors) == 2:
            self.output = (descriptors[0], descriptors[1])
        self.lock = Path(address).with_name(LOCK)

    @property
    def socket(self) -> socket.socket | None:
        """Return the socket to wait on, or None without a launcher."""
        return self._socket

    def hear(self) -> int | None:
        """Return the signal to pass on, or None when the launcher is gone."""
        assert self._socket
        try:
            message = self._socket.recv(MAX_MESSAGE)
        except OSError:
            return None
        return int(message) if message else None

    def tell(self, message: bytes) -> None:
        """Send a report; a launcher that is gone is ignored."""
        if self._socket:
            with contextlib.suppress(OSError):
                self._socket.send(message)
