# SPDX-License-Identifier: Apache-2.0
"""The wire between the launcher and its guards: a Unix socket, one message a packet.

    guard                                launcher
    ├── {"rank": 3}                 ──▶  knows that the rank starts
    ◀── "output" + two descriptors  ──┤  where the rank's output goes
    ◀── "15"                        ──┤  pass this signal on, once
    ├── Report                      ──▶  knows how the rank ended
    └── end of file                 ──▶  without a report: the guard was killed

The end of file towards the guard says that the launcher is gone. The output
travels as descriptors because torchrun's own is kept apart.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from smdist.launch.report import MAX_ERROR

SOCKET: Final = "guards.sock"
LOCK: Final = "output.lock"
MAX_MESSAGE: Final = 16 * MAX_ERROR  # JSON spells one character in up to twelve bytes
_OUTPUT: Final = b"output"
_ANSWER_SECONDS: Final = 30.0


def listen(directory: Path) -> socket.socket:
    """The launcher's end, for any number of guards."""
    server = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with _short(directory / SOCKET) as name:
        server.bind(name)
    server.listen(1024)
    (directory / LOCK).touch()
    return server


@contextlib.contextmanager
def _short(path: Path) -> Iterator[str]:
    """A name of any path within the 107 bytes that the kernel takes for a socket."""
    directory = os.open(path.parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{directory}/{path.name}"
    finally:
        os.close(directory)


def give_output(guard: socket.socket) -> None:
    """Hand the launcher's own stdout and stderr to a guard that called."""
    socket.send_fds(guard, [_OUTPUT], [1, 2])


class Call:
    """A guard's end. Without a launcher its output is its own and nobody speaks to it."""

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
        """To wait on."""
        return self._socket

    def hear(self) -> int | None:
        """The signal to pass on, or None when the launcher is gone."""
        assert self._socket
        try:
            message = self._socket.recv(MAX_MESSAGE)
        except OSError:
            return None
        return int(message) if message else None

    def tell(self, message: bytes) -> None:
        """Send a report, if anyone listens."""
        if self._socket:
            with contextlib.suppress(OSError):
                self._socket.send(message)
