# SPDX-License-Identifier: Apache-2.0
"""Protocol between the launcher and its rank guards: one message per packet of a Unix socket.

    guard                                launcher
    ├── {"rank": 3}                 ──▶  the guard of rank 3 is connected
    ◀── "output" + two descriptors  ──┤  the stdout and stderr that the guard must write to
    ◀── "15"                        ──┤  signal number to send to the rank, once
    ├── Report                      ──▶  how the rank ended
    └── end of file                 ──▶  without a report before: the guard was killed

End of file at the guard means that the launcher has ended. The launcher sends its stdout and
stderr as file descriptors, because the guard's own streams go to torchrun's log.
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
MAX_MESSAGE: Final = 16 * MAX_ERROR  # bytes; JSON writes a character in up to twelve bytes
_OUTPUT: Final = b"output"
_ANSWER_SECONDS: Final = 30.0


def listen(directory: Path) -> socket.socket:
    """Open the launcher's socket in `directory`, to which the guards connect."""
    server = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with _short(directory / SOCKET) as name:
        server.bind(name)
    server.listen(1024)
    (directory / LOCK).touch()
    return server


@contextlib.contextmanager
def _short(path: Path) -> Iterator[str]:
    """Yield a short path of the file `path`, which is valid within the `with` block.

    The address of a Unix socket has at most 107 bytes, and `path` may be longer.
    """
    directory = os.open(path.parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{directory}/{path.name}"
    finally:
        os.close(directory)


def give_output(guard: socket.socket) -> None:
    """Send the launcher's stdout and stderr to a guard that has connected."""
    socket.send_fds(guard, [_OUTPUT], [1, 2])


class LauncherConnection:
    """Guard's end of its connection to the launcher.

    Attributes:
        output: File descriptors to which the guard writes stdout and stderr: the launcher's, or
            its own without a launcher.
        lock: File to lock while writing whole lines, or None without a launcher.
    """

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
        """Return the connected socket, for a selector, or None without a launcher."""
        return self._socket

    def receive_signal(self) -> int | None:
        """Receive the number of a signal for the rank; None if the launcher has ended."""
        assert self._socket
        try:
            message = self._socket.recv(MAX_MESSAGE)
        except OSError:
            return None
        return int(message) if message else None

    def send_report(self, message: bytes) -> None:
        """Send an encoded `Report` to the launcher; does nothing if the launcher has ended."""
        if self._socket:
            with contextlib.suppress(OSError):
                self._socket.send(message)
