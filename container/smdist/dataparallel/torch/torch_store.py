# SPDX-License-Identifier: Apache-2.0
"""Adapter from torch's store of a process group to the rendezvous's store interface."""

from __future__ import annotations

from datetime import timedelta

from torch._C._distributed_c10d import Store

_SHORTEST = timedelta(milliseconds=1)  # some stores take 0 as no limit


class TorchStore:
    """Rendezvous store over any of torch's stores."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def set(self, key: str, value: bytes) -> None:
        """Set the value of a key, as text: some of torch's stores take no bytes."""
        self._store.set(key, value.decode("latin-1"))

    def get(self, key: str, patience_seconds: float) -> bytes:
        """Wait for the value of a key and return it.

        Raises:
            TimeoutError: No rank has set the key in time.
        """
        try:
            self._store.wait([key], max(timedelta(seconds=patience_seconds), _SHORTEST))
        except RuntimeError as error:  # each kind of store raises a different subclass
            if not self._store.check([key]):
                raise TimeoutError(f"{key!r} is not set after {patience_seconds:g} s") from error
        return self._store.get(key).decode().encode("latin-1")

    def add(self, key: str, count: int) -> int:
        """Add to the counter under this key and return the sum."""
        return int(self._store.add(key, count))
