# SPDX-License-Identifier: Apache-2.0
"""torch's store of a process group, as the rendezvous uses one."""

from __future__ import annotations

from datetime import timedelta

from torch._C._distributed_c10d import Store

_SHORTEST = timedelta(milliseconds=1)  # to some kinds of store 0 is no limit


class TorchStore:
    """Any of torch's stores."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def set(self, key: str, value: bytes) -> None:
        """Leave a word as text: torch's stubs and some of its stores know no other."""
        self._store.set(key, value.decode("latin-1"))

    def get(self, key: str, patience_seconds: float) -> bytes:
        """Wait for a word.

        Raises:
            TimeoutError: Nobody has left it by then.
        """
        try:
            self._store.wait([key], max(timedelta(seconds=patience_seconds), _SHORTEST))
        except RuntimeError as error:  # each kind of store raises another
            if not self._store.check([key]):
                raise TimeoutError(f"{key!r} is not set after {patience_seconds:g} s") from error
        return self._store.get(key).decode().encode("latin-1")

    def add(self, key: str, count: int) -> int:
        """Count under this key."""
        return int(self._store.add(key, count))
