# SPDX-License-Identifier: Apache-2.0
"""Progress lines on stderr while a checkpoint is written or read for more than a few seconds."""

from __future__ import annotations

import sys
import time

_SILENT_SECONDS = 3.0
_BETWEEN_SECONDS = 10.0
_UNITS = ("bytes", "KiB", "MiB", "GiB", "TiB")


class CheckpointProgress:
    """Progress of writing or reading a checkpoint, printed on stderr by one rank.

    A line is printed every ten seconds, and one at the end if the work took more than three
    seconds.

    Args:
        title: Description of the work, such as "checkpoint '10' to /fsx/run".
        prints: True on the rank that prints; False on all other ranks.
    """

    def __init__(self, title: str, *, prints: bool) -> None:
        self._title, self._prints = title, prints
        self._begin = time.perf_counter()
        self._next = self._begin + _BETWEEN_SECONDS
        self._done = 0

    def add(self, num_bytes: int) -> None:
        """Add to the number of bytes that this rank has written or read.

        A line is printed if ten seconds have passed since the last one.
        """
        self._done += num_bytes
        now = time.perf_counter()
        if now >= self._next:
            self._next = now + _BETWEEN_SECONDS
            self._print(f"{in_units(self._done)} of this rank in {now - self._begin:.0f} s so far")

    def close(self, total: int) -> None:
        """Print the final line, if the work took more than three seconds.

        Args:
            total: Number of bytes of all ranks together.
        """
        seconds = time.perf_counter() - self._begin
        if seconds > _SILENT_SECONDS:
            self._print(f"{in_units(total)} in {seconds:.1f} s")

    def _print(self, words: str) -> None:
        if self._prints:
            sys.stderr.write(f"{self._title}: {words}\n")
            sys.stderr.flush()


def in_units(num_bytes: int) -> str:
    """Return a number of bytes as text with a unit, such as "1.5 GiB"."""
    amount, unit = float(num_bytes), 0
    while amount >= 1024 and unit < len(_UNITS) - 1:
        amount, unit = amount / 1024, unit + 1
    return f"{amount:.0f} {_UNITS[0]}" if unit == 0 else f"{amount:.1f} {_UNITS[unit]}"
