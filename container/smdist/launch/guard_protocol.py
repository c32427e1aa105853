# SPDX-License-Identifier: Apache-2.0
"""Protocol between the launcher and its rank guards: one message per packet of a Unix socket.

    guard                                launcher
    ├── {"rank": 3}                 ──▶  the guard of rank 3 is connected
    ◀── "output" + two descriptors  ──┤  the stdout and stderr that the guard must write to
    ◀── "15"                        ──┤  signal number to send to the rank, once
    ├── Report                      ──▶  how the rank ended
    └── end of file                 ──▶  the guard has ended; if it sent no Report, it was killed

End of file at the guard means that the launcher has ended. The launcher sends its stdout and
stderr as file descriptors, because the guard's own streams go to torchrun's log.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import socket
import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final, cast

MAX_ERROR: Final = 4096  # characters of an error or a frame in a report
_SECONDARY: Final = (  # exceptions of a rank that lost a peer
    "AbortedError",  # TensorFlow's, of our engine and of its own collectives
    "PeerError",
    "DistBackendError",
    "DistNetworkError",
    "DistStoreError",
)
ENDED_ON_REQUEST: Final = 4  # a `Report.distance`: the rank ended because of a signal
_LOST_PEER: Final = re.compile(  # Gloo raises a plain RuntimeError, known only by its text
    r"Connection closed by peer|Connection reset by peer"
)
SOCKET: Final = "guards.sock"
LOCK: Final = "output.lock"
MAX_MESSAGE: Final = 16 * MAX_ERROR  # bytes; JSON writes a character in up to twelve bytes
_FAULT_TYPES: Final = {
    "kind": str,
    "exception": str,
    "about": str | None,
    "culprit": int | None,
    "operation": str,
    "late_ranks": list,
}
_REPORT_TYPES: Final = {
    "rank": int | None,
    "status": int,
    "at_seconds": int | float,
    "stopped": bool,
    "error": str,
    "frame": str,
    "fault": dict | None,
    "connected_at": int | float | None,
}
_MOST: Final = 1 << 53  # larger numbers than any rank, status or time
_OUTPUT: Final = b"output"
_ANSWER_SECONDS: Final = 30.0


class GuardMessageError(Exception):
    """Raised when a message, or the file of a rank's fault, has another content than ours have."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RankFault:
    """Fields of the exception that ended a rank, from the JSON file that the rank wrote.

    Attributes:
        kind: Kind of the error: "raised", unless smdist itself raised the exception. Then it is
            the kind of smdist's error, such as "lost" or "option".
        exception: Name of the exception's type.
        about: Option that is wrong, such as "placement_strategy"; None if it is about no option.
        culprit: The rank that caused the exception; None if no rank is known.
        operation: The collective that failed, such as "all_reduce"; empty if there is none.
        late_ranks: Ranks that did not come to an operation before its timeout, as dicts:
            docs/debugging.md describes them.
    """

    kind: str
    exception: str = ""
    about: str | None = None
    culprit: int | None = None
    operation: str = ""
    late_ranks: Sequence[Mapping[str, Any]] = ()


def read_fault(path: Path) -> RankFault | None:
    """Read the fields of the exception from a rank's file; None if there is no readable file.

    A file that is no fault, because another program wrote it, counts as unreadable.
    """
    try:
        return _fault_of(json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, RecursionError, GuardMessageError):
        return None


def read_connected_at(path: Path) -> float | None:
    """Return the time when a rank created the file `path`, in seconds since 1970; None if not yet.

    A rank creates the file when it has connected to all other ranks.
    """
    try:
        return path.stat().st_mtime
    except OSError:
        return None


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """Report on how one rank ended.

    Attributes:
        rank: The rank's number; None for a plain process that is no rank of a job.
        status: Exit code, or -n if signal n killed the rank.
        at_seconds: Time when the rank ended, in seconds since 1970.
        stopped: True if a signal was sent to the rank before the rank ended.
        error: The last exception as Python printed it, or the last line of stderr.
        frame: Source line that raised the exception, such as `train.py:12 in main`.
        fault: Kind and other fields of the exception, from a JSON file that the rank wrote; None
            if there is no such file.
        connected_at: Time when the rank had connected to all others, in seconds since 1970; None
            if it has not.
    """

    rank: int | None = None
    status: int
    at_seconds: float
    stopped: bool = False
    error: str = ""
    frame: str = ""
    fault: RankFault | None = None
    connected_at: float | None = None

    @property
    def failed(self) -> bool:
        """True if the rank did not end with exit code 0."""
        return self.status != 0

    @property
    def distance(self) -> int:
        """Number that orders failed ranks: the smallest is the likeliest cause of the failure.

        0: the rank failed by itself.
        1: the rank was sent a signal and then raised an exception by itself.
        2: the rank raised an exception because it and another one have called different things.
        3: the rank failed because of another rank, for example a lost connection.
        4: the rank was sent a signal and ended in any other way.
        """
        # 1 and 2 are before 3: a rank that lost its peer may end before the peer has printed its
        # traceback
        if self.stopped and not self.raised:
            return ENDED_ON_REQUEST
        if not self.is_secondary:
            return 1 if self.stopped else 0
        if self.fault is not None and self.fault.kind == "usage":
            return 2
        return ENDED_ON_REQUEST if self.stopped else 3

    @property
    def is_secondary(self) -> bool:
        """True if another rank caused the end of this rank.

        This is so if `fault.culprit` is another rank. If the culprit is unknown, the type and the
        message of the exception decide.
        """
        if self.fault is not None and self.fault.culprit is not None:
            return self.fault.culprit != self.rank
        return self._name in _SECONDARY or bool(_LOST_PEER.search(self.error))

    @property
    def raised(self) -> bool:
        """True if the rank printed a traceback and failed; KeyboardInterrupt does not count."""
        return bool(self.status and self.frame) and self._name != "KeyboardInterrupt"

    @property
    def exit_code(self) -> int:
        """Exit code as a shell has it: 128 + n if signal n ended the rank.

        1 if the rank had raised an exception and a signal ended it before it could exit.
        """
        was_interrupted = self.stopped and self.status < 0 and self.raised
        return 1 if was_interrupted else exit_status(self.status)

    @property
    def _name(self) -> str:
        return self.error.partition(":")[0].rpartition(".")[2]

    def encode(self) -> bytes:
        """Return the report as JSON, the message that a guard sends."""
        return json.dumps(asdict(self)).encode()


def parse_message(message: bytes) -> Report | int | None:
    """Return the content of a guard's message: a report, or the number of its rank.

    The number is None for a plain process that is no rank of a job.

    Raises:
        GuardMessageError: The message is not one that a guard of this release sends.
    """
    try:
        found = json.loads(message)
    except (ValueError, RecursionError) as error:
        raise GuardMessageError("the message is not JSON") from error
    if isinstance(found, dict) and found.keys() == {"rank"}:
        return cast("int | None", _checked(found, {"rank": int | None}, ("rank",))["rank"])
    fields = _checked(found, _REPORT_TYPES, ("status", "at_seconds"))
    fault = fields.get("fault")
    return Report(**{**fields, "fault": None if fault is None else _fault_of(fault)})


def _fault_of(found: Any) -> RankFault:
    fields = _checked(found, _FAULT_TYPES, ("kind",))
    return RankFault(**fields | {"late_ranks": tuple(fields.get("late_ranks", ()))})


def _checked(found: Any, types: Mapping[str, Any], needed: Iterable[str]) -> dict[str, Any]:
    """Return a JSON object, if it has the fields `needed` and no others than those in `types`."""
    if not isinstance(found, dict) or not set(needed) <= found.keys() <= types.keys():
        raise GuardMessageError("it is not an object with the fields of this message")
    for name, value in found.items():
        is_bool = isinstance(value, bool)
        if not isinstance(value, types[name]) or is_bool != (types[name] is bool):
            raise GuardMessageError(f"its field {name} is a {type(value).__name__}")
        if isinstance(value, int | float) and not abs(value) <= _MOST:
            raise GuardMessageError(f"its field {name} is not a number in range")
    return found


def exit_status(status: int) -> int:
    """Return the exit code that a shell gives a process, from Popen's return code `status`.

    A return code of -n, which means that signal n ended the process, becomes 128 + n.
    """
    return status if status >= 0 else 128 - status


def signal_name(number: int) -> str:
    """Return a signal's name: "SIGKILL" for 9, "signal 35" for one without a name."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


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


def pid_of(guard: socket.socket) -> int:
    """Return the number of the process at the other end of a Unix socket."""
    size = struct.calcsize("3i")
    pid, _, _ = struct.unpack("3i", guard.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size))
    return int(pid)


def give_output(guard: socket.socket) -> None:
    """Send file descriptors of the launcher's stdout and stderr to a rank's parent process."""
    socket.send_fds(guard, [_OUTPUT], [1, 2])


class LauncherConnection:
    """Connection to the host's launcher from a guard, the parent process of one rank.

    Attributes:
        output: File descriptors of the stdout and stderr to write to: those of the launcher, or
            the guard's own if there is no launcher.
        lock: Path of the file to lock while writing whole lines; None if there is no launcher.
        has_ended: True if the launcher was there and ended before this guard could connect.
    """

    def __init__(self, address: str | None, rank: int | None) -> None:
        self.output = (1, 2)
        self.lock: Path | None = None
        self.has_ended = False
        self._socket: socket.socket | None = None
        if not address:
            return
        try:
            self._connect(address, rank)
        except (ConnectionRefusedError, FileNotFoundError):  # nobody listens, or its folder is gone
            self.has_ended = True
        except OSError:  # too slow to answer: go on without
            pass

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

    @property
    def pid(self) -> int | None:
        """Return the number of the launcher's process, or None without a launcher."""
        return pid_of(self._socket) if self._socket else None

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
