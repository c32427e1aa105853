# SPDX-License-Identifier: Apache-2.0
"""Key-value store through which ranks exchange data before they have connections of their own."""

from __future__ import annotations

from typing import Protocol


class Store(Protocol):
    """Map from strings to bytes that all ranks of a job share."""

    def set(self, key: str, value: bytes) -> None:
        """Set the value of a key and wake the ranks that wait for it."""

    def get(self, key: str, patience_seconds: float) -> bytes:
        """Wait for the value of a key and return it.

        Raises:
            TimeoutError: No rank has set the key in time.
        """

    def add(self, key: str, count: int) -> int:
        """Add to the counter under this key, which starts at 0, and return the sum."""


class OwnStore:
    """Store of a job with a single process."""

    def __init__(self) -> None:
        self._words: dict[str, bytes] = {}

    def set(self, key: str, value: bytes) -> None:
        """Set the value of a key."""
        self._words[key] = value

    def get(self, key: str, patience_seconds: float) -> bytes:
        """Return the value of a key without waiting, because no other process could set it.

        Raises:
            TimeoutError: The key is not set.
        """
        if key not in self._words:
            raise TimeoutError(f"nobody can set {key!r} within {patience_seconds:g} s")
        return self._words[key]

    def add(self, key: str, count: int) -> int:
        """Add to the counter under this key and return the sum."""
        total = int(self._words.get(key, b"0")) + count
        self._words[key] = b"%d" % total
        return total
