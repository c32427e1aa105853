# SPDX-License-Identifier: Apache-2.0
r"""Prefixes for the lines of a rank's output, which show the rank's name.

    "epoch 1\n"       ->  "[algo-2 rank 3] epoch 1\n"
    "\r 10%|#   |"    ->  "\r[algo-2 rank 3]  10%|#   |"      a progress bar still overwrites itself

The output is handled as bytes; bytes that are not UTF-8 stay unchanged.

TensorFlow logs a few lines in each process before it reads TF_CPP_MIN_LOG_LEVEL, and no variable
turns them off. The pattern `STARTING` matches them, so that a `Relay` can drop them.
"""

from __future__ import annotations

import re
from typing import Final

MAX_SEGMENT: Final = 1 << 16  # bytes; a longer line is split after these
STARTING: Final = re.compile(
    rb"WARNING: All log messages before absl::InitializeLog\(\) is called are written to STDERR\s*$"
    rb"|I0000 [\d:.]+ +\d+ \S+\.cc:\d+\] "
)


class Relay:
    """Splits a stream of bytes into lines and puts `[name] ` before each. Thread safety: none.

    Args:
        name: The rank's name, such as "algo-2 rank 3".
        without: Pattern of the beginning of lines to drop; None drops none.
    """

    def __init__(self, name: str, without: re.Pattern[bytes] | None = None) -> None:
        self._without = without
        self._prefix = f"[{name}] ".encode()
        self._rest = b""
        self._after_return = False  # the last data ended in \r, so a \n next is the same line end

    def feed(self, data: bytes) -> bytes:
        """Add output of the rank; return the lines completed by it, each with the prefix.

        The rest after the last line end is kept for the next call.
        """
        lead = b""
        if self._after_return and data.startswith(b"\n"):
            lead, data = b"\n", data[1:]
        self._after_return = data.endswith(b"\r")
        *segments, self._rest = _split_lines(self._rest + data)
        if len(self._rest) > MAX_SEGMENT:
            segments.append(self._rest + b"\n")
            self._rest = b""
        return lead + b"".join(self._prefix + part for part in segments if self._is_shown(part))

    def finish(self) -> bytes:
        """Return the rest after the last line end, with prefix and line end; b"" if none."""
        rest, self._rest = self._rest, b""
        return self._prefix + rest + b"\n" if rest and self._is_shown(rest) else b""

    def _is_shown(self, segment: bytes) -> bool:
        return segment != b"\r" and not (self._without and self._without.match(segment))


def _split_lines(data: bytes) -> list[bytes]:
    r"""Split after every \r\n, \n and \r; the last part has no line end and may be empty."""
    parts = data.splitlines(keepends=True)
    return [*parts, b""] if not parts or parts[-1][-1:] in b"\r\n" else parts
