# SPDX-License-Identifier: Apache-2.0
"""Where ranks leave words for each other before they have connections of their own."""

from __future__ import annotations

from typing import Protocol


class Store(Protocol):
    """A map of texts to bytes that all ranks of a job see."""

    def set(self, key: str, value: bytes) -> None:
        """Leave a word; whoever waits for it is told."""

    def get(self, key: str, patience_seconds: float) -> bytes:
        """Wait for a word.

        Raises:
            TimeoutError: Nobody has left it by then.
        """

    def add(self, key: str, count: int) -> int:
        """Count under this key, from 0; the sum so far."""


class OwnStore:
    """The store of a job of one process."""

    def __init__(self) -> None:
        self._words: dict[str, bytes] = {}

    def set(self, key: str, value: bytes) -> None:
        """Keep a word."""
        self._words[key] = value

    def get(self, key: str, patience_seconds: float) -> bytes:
        """A word; nobody else could leave it later.

        Raises:
            TimeoutError: It is not there.
        """
        if key not in self._words:
            raise TimeoutError(f"nobody can set {key!r} within {patience_seconds:g} s")
        return self._words[key]

    def add(self, key: str, count: int) -> int:
        """Count under this key."""
        total = int(self._words.get(key, b"0")) + count
        self._words[key] = b"%d" % total
        return total
