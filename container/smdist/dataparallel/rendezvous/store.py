# SPDX-License-Identifier: Apache-2.0
"""Interface of the key-value store through which ranks exchange data before they are connected."""

from __future__ import annotations

from typing import Protocol


class Store(Protocol):
    """Map from keys to bytes that all ranks of a job can read and write."""

    def set(self, key: str, value: bytes) -> None:
        """Set the value of a key and wake the ranks that wait for it."""

    def get(self, key: str, timeout_seconds: float) -> bytes:
        """Wait until a rank has set the key, and return its value.

        Raises:
            TimeoutError: No rank has set the key within `timeout_seconds`.
        """

    def add(self, key: str, count: int) -> int:
        """Add `count` to the counter under this key, which starts at 0; return the new value."""

    def delete(self, key: str) -> None:
        """Remove the value of a key, so that no process can read it any more."""


class OwnStore:
    """Store in this process's memory, for a job with a single process."""

    def __init__(self) -> None:
        self._values: dict[str, bytes] = {}

    def set(self, key: str, value: bytes) -> None:
        """Set the value of a key."""
        self._values[key] = value

    def get(self, key: str, timeout_seconds: float) -> bytes:
        """Return the value of a key, without waiting, because no other process can set it.

        `timeout_seconds` is only a number in the error's text.

        Raises:
            TimeoutError: The key is not set.
        """
        if key not in self._values:
            raise TimeoutError(
                f"the key {key!r} is not set, and this job has no other process that could set it"
                f" within {timeout_seconds:g} s"
            )
        return self._values[key]

    def add(self, key: str, count: int) -> int:
        """Add `count` to the counter under this key, which starts at 0; return the new value."""
        total = int(self._values.get(key, b"0")) + count
        self._values[key] = b"%d" % total
        return total

    def delete(self, key: str) -> None:
        """Remove the value of a key."""
        self._values.pop(key, None)
