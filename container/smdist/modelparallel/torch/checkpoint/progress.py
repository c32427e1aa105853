# SPDX-License-Identifier: Apache-2.0
"""Tells people that a checkpoint is being written or read, once it has lasted a few seconds."""

from __future__ import annotations

import sys
import time

_SILENT_SECONDS = 3.0
_BETWEEN_SECONDS = 10.0
_UNITS = ("bytes", "KiB", "MiB", "GiB", "TiB")


class Progress:
    """A line every ten seconds, and one at the end of what took longer than three.

    Args:
        title: What is under way: "checkpoint '10' to /fsx/run".
        is_told: False on all ranks but one.
    """

    def __init__(self, title: str, *, is_told: bool) -> None:
        self._title, self._is_told = title, is_told
        self._begin = time.perf_counter()
        self._next = self._begin + _BETWEEN_SECONDS
        self._done = 0

    def add(self, num_bytes: int) -> None:
        """So many more are done on this rank."""
        self._done += num_bytes
        now = time.perf_counter()
        if now >= self._next:
            self._next = now + _BETWEEN_SECONDS
            self._tell(f"this rank's {in_units(self._done)} in {now - self._begin:.0f} s so far")

    def close(self, total: int) -> None:
        """All ranks are done, with so many bytes together."""
        seconds = time.perf_counter() - self._begin
        if seconds > _SILENT_SECONDS:
            self._tell(f"{in_units(total)} in {seconds:.1f} s")

    def _tell(self, words: str) -> None:
        if self._is_told:
            sys.stderr.write(f"{self._title}: {words}\n")
            sys.stderr.flush()


def in_units(num_bytes: int) -> str:
    """A number of bytes for people: "1.5 GiB"."""
    amount, unit = float(num_bytes), 0
    while amount >= 1024 and unit < len(_UNITS) - 1:
        amount, unit = amount / 1024, unit + 1
    return f"{amount:.0f} {_UNITS[0]}" if unit == 0 else f"{amount:.1f} {_UNITS[unit]}"
