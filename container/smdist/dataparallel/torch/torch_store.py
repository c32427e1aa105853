# SPDX-License-Identifier: Apache-2.0
"""Adapter that gives a torch.distributed store the interface of `rendezvous.store.Store`."""

from __future__ import annotations

from datetime import timedelta

from torch._C._distributed_c10d import Store

_SHORTEST = timedelta(milliseconds=1)  # to some stores 0 means no limit


class TorchStore:
    """Store for the rendezvous of ranks that keeps its keys in a store of torch.distributed."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def set(self, key: str, value: bytes) -> None:
        """Set the value of a key; it is stored as text, since some torch stores take no bytes."""
        self._store.set(key, value.decode("latin-1"))

    def get(self, key: str, timeout_seconds: float) -> bytes:
        """Wait until a rank has set the key, and return its value.

        Raises:
            TimeoutError: No rank has set the key within `timeout_seconds`.
        """
        try:
            self._store.wait([key], max(timedelta(seconds=timeout_seconds), _SHORTEST))
        except RuntimeError as error:  # each kind of store raises a different subclass
            if not self._store.check([key]):
                raise TimeoutError(
                    f"no rank has set the key {key!r} within {timeout_seconds:g} s"
                ) from error
        return self._store.get(key).decode().encode("latin-1")

    def add(self, key: str, count: int) -> int:
        """Add `count` to the counter under this key, which starts at 0; return the new value."""
        return int(self._store.add(key, count))

    def delete(self, key: str) -> None:
        """Remove the value of a key; a store that cannot remove keys gets an empty value."""
        try:
            self._store.delete_key(key)
        except RuntimeError:
            self._store.set(key, "")
