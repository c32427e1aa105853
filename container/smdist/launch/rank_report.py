# SPDX-License-Identifier: Apache-2.0
"""Report on how one rank ended, which its guard sends to the launcher."""

from __future__ import annotations

import json
import re
import signal
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

MAX_ERROR: Final = 4096  # characters of an error or a frame in a report
_SECONDARY: Final = (  # exceptions of a rank that lost a peer
    "AbortedError",  # TensorFlow's, of our engine and of its own collectives
    "PeerError",
    "DistBackendError",
    "DistNetworkError",
    "DistStoreError",
)
ENDED_ON_REQUEST: Final = 3  # a `Report.distance`: the rank ended because of a signal
_LOST_PEER: Final = re.compile(  # Gloo raises a plain RuntimeError, known only by its text
    r"Connection closed by peer|Connection reset by peer"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class RankFault:
    """Fields of the exception that ended a rank, from the JSON file that the rank wrote.

    Attributes:
        kind: Kind of the engine's fault, such as "lost", or of another error, such as "option",
            "step" or "raised".
        exception: Name of the exception's type.
        culprit: The rank that caused the exception; None if no rank is known.
        operation: The collective that failed, such as "all_reduce"; empty if there is none.
    """

    kind: str
    exception: str = ""
    culprit: int | None = None
    operation: str = ""


def read_fault(path: Path) -> RankFault | None:
    """Read the fields of the exception from a rank's file; None if there is no readable file."""
    try:
        return RankFault(**json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError):
        return None


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """Report on how one rank ended.

    Attributes:
        rank: The rank's number; None for a plain process that is no rank of a job.
        status: Exit code, or -n if signal n killed the rank.
        at_seconds: Time of its end, in seconds since 1970.
        stopped: True if the guard had sent the rank a signal before.
        error: The last exception as Python printed it, or the last line of stderr.
        frame: Source line that raised the exception, such as `train.py:12 in main`.
        fault: Fields of that exception; None if the rank wrote none.
    """

    rank: int | None = None
    status: int
    at_seconds: float
    stopped: bool = False
    error: str = ""
    frame: str = ""
    fault: RankFault | None = None

    @property
    def failed(self) -> bool:
        """True if the rank did not end with exit code 0."""
        return self.status != 0

    @property
    def distance(self) -> int:
        """Number that orders failed ranks: the smallest is the likeliest cause of the failure.

        0: the rank failed by itself. 1: it raised an exception after the guard's signal. 2: it
        failed because it lost another rank. 3: it ended because of a signal. 1 is before 2, because
        a rank that lost its peer may end before that peer has printed its traceback.
        """
        lost_peer = self.is_secondary
        if not self.stopped:
            return 2 if lost_peer else 0
        return 1 if self.raised and not lost_peer else ENDED_ON_REQUEST

    @property
    def is_secondary(self) -> bool:
        """True if another rank caused the end of this rank.

        The fault's `culprit` decides; if it is unknown, the exception's type and message.
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


def decode_report(message: bytes) -> Report:
    """Return the report from the JSON message that `Report.encode` made."""
    fields = json.loads(message)
    fault = fields.pop("fault", None)
    return Report(**fields, fault=None if fault is None else RankFault(**fault))


def exit_status(status: int) -> int:
    """Return the exit code of a shell for a `Popen` status: 128 + n for -n, ended by signal n."""
    return status if status >= 0 else 128 - status


def signal_name(number: int) -> str:
    """Return a signal's name: "SIGKILL" for 9, "signal 35" for one without a name."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
