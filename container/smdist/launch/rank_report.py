# SPDX-License-Identifier: Apache-2.0
"""How one rank ended: what its guard tells the launcher."""

from __future__ import annotations

import json
import re
import signal
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

MAX_ERROR: Final = 4096
_SECONDARY: Final = (
    "AbortedError",  # TensorFlow's, of our engine and of its own collectives
    "PeerError",
    "DistBackendError",
    "DistNetworkError",
    "DistStoreError",
)
ENDED_AS_TOLD: Final = 3  # a distance
_LOST_PEER: Final = re.compile(  # Gloo's: its exceptions are RuntimeErrors with a text alone
    r"Connection closed by peer|Connection reset by peer"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class RankFault:
    """Fields of the exception that ended a rank, as the rank itself left them.

    Attributes:
        kind: Of the engine's fault, such as "lost", or of the error: "option", "step", "raised".
        culprit: The rank that it is about; None where it is about none.
        exception: Name of its type.
        operation: Such as "all_reduce"; empty where it is of none.
    """

    kind: str
    exception: str = ""
    culprit: int | None = None
    operation: str = ""


def read_fault(path: Path) -> RankFault | None:
    """Read what a rank left at its end; None where it left nothing."""
    try:
        return RankFault(**json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError):
        return None


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """How one rank ended.

    Attributes:
        rank: None outside a world of ranks.
        status: Exit code, or -n when signal n killed it.
        at_seconds: When it ended, since the epoch.
        stopped: The guard had passed a signal on before.
        error: The last exception as Python printed it, or the last line of stderr.
        frame: Where the exception was raised: `train.py:12 in main`.
        fault: Fields of that exception, if the rank left them.
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
        """Whether the rank ended other than well."""
        return self.status != 0

    @property
    def distance(self) -> int:
        """How far from the cause: 0 failed by itself, 3 ended as it was told.

        A rank that loses a peer may end before that peer has printed its
        traceback, so an exception after a signal (1) counts more than the word
        of a rank that only lost a peer (2).
        """
        lost_peer = self.is_secondary
        if not self.stopped:
            return 2 if lost_peer else 0
        return 1 if self.raised and not lost_peer else ENDED_AS_TOLD

    @property
    def is_secondary(self) -> bool:
        """Whether another rank's end is the cause: by the fields of its fault, if it left them."""
        if self.fault is not None and self.fault.culprit is not None:
            return self.fault.culprit != self.rank
        return self._name in _SECONDARY or bool(_LOST_PEER.search(self.error))

    @property
    def raised(self) -> bool:
        """Whether an exception ended it; a signal may have come before its end did."""
        return bool(self.status and self.frame) and self._name != "KeyboardInterrupt"

    @property
    def exit_code(self) -> int:
        """A shell's, of what the rank did by itself."""
        cut_short = self.stopped and self.status < 0 and self.raised
        return 1 if cut_short else exit_status(self.status)

    @property
    def _name(self) -> str:
        return self.error.partition(":")[0].rpartition(".")[2]

    def encode(self) -> bytes:
        """Write it as one message."""
        return json.dumps(asdict(self)).encode()


def decode_report(message: bytes) -> Report:
    """Read what `encode` wrote."""
    fields = json.loads(message)
    fault = fields.pop("fault", None)
    return Report(**fields, fault=None if fault is None else RankFault(**fault))


def exit_status(status: int) -> int:
    """A shell's exit code: 128 + n for signal n."""
    return status if status >= 0 else 128 - status


def signal_name(number: int) -> str:
    """SIGKILL for 9; realtime signals have no name."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
