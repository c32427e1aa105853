# SPDX-License-Identifier: Apache-2.0
"""Tells people that a measurement or an estimate is under way, once it has lasted a few seconds."""

from __future__ import annotations

import logging
import sys
import time

_log = logging.getLogger(__name__)
_SILENT_SECONDS = 3.0
_BETWEEN_SECONDS = {True: 0.2, False: 10.0}  # on a terminal, and in a file


class Progress:
    """One line on a terminal that changes; elsewhere a line every ten seconds.

    Args:
        total: How many nodes there are.
        done: What is done to them: "measured".
    """

    def __init__(self, total: int, done: str) -> None:
        self._total, self._done = total, done
        self._is_live = sys.stderr.isatty()
        self._begin = time.perf_counter()
        self._next = self._begin + _SILENT_SECONDS
        self._is_open = False

    def tell(self, number: int, name: str) -> None:
        """Node `number` of all is next."""
        now = time.perf_counter()
        if now < self._next:
            return
        self._next = now + _BETWEEN_SECONDS[self._is_live]
        self._is_open = self._is_live
        line = f"{self._done} {number} of {self._total} parts of the model; next is {name}"
        sys.stderr.write(f"\r\x1b[K{line[:78]}" if self._is_live else f"{line}\n")
        sys.stderr.flush()

    def close(self, num_kinds: int) -> None:
        """Clears the line and logs how much was done."""
        if self._is_open:
            sys.stderr.write("\r\x1b[K")
        seconds = time.perf_counter() - self._begin
        words = "%s %d kinds of %d parts in %.1f s"
        _log.info(words, self._done, num_kinds, self._total, seconds)
