# SPDX-License-Identifier: Apache-2.0
"""Client of a TCPStore that connects again after its connection was lost."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

from torch._C._distributed_c10d import Store
from torch.distributed import DistNetworkError


class ReconnectingStore(Store):
    """Store of torchrun's agents, which connects anew when its connection was lost, and asks again.

    torchrun uses its store at the start of a job and, perhaps days later, at the end, when its
    launchers wait for each other. A firewall or a switch may have ended the idle connection by
    then. A TCPStore does not connect again, and the other launchers would wait 300 s for this one.

    A request whose answer was lost is carried out twice.

    Args:
        connect: Function that connects to the store and returns the connection. It is called at
            once.
        connect_again: Function that does the same after each loss; None for `connect`. It raises
            RuntimeError at once if the store has ended, as at the end of a job that has succeeded.

    Raises:
        RuntimeError: The store cannot be reached.
    """

    def __init__(
        self, connect: Callable[[], Store], connect_again: Callable[[], Store] | None = None
    ) -> None:
        super().__init__()
        self._connect_again = connect_again or connect
        self._connection = connect()

    def set(self, key: str, value: str | bytes) -> None:
        """Set the value of a key."""
        self._ask("set", key, value)

    def get(self, key: str) -> bytes:
        """Wait for a key, at most the timeout of this store, and return its value."""
        value: bytes = self._ask("get", key)
        return value

    def add(self, key: str, value: int) -> int:
        """Add `value` to the counter under this key; return the new value."""
        return int(self._ask("add", key, value))

    def check(self, keys: list[str]) -> bool:
        """Return True if all these keys have values."""
        return bool(self._ask("check", keys))

    def wait(self, keys: list[str], timeout: timedelta | None = None) -> None:
        """Wait until all these keys have values, by default at most the timeout of this store."""
        self._ask("wait", keys, timeout or self._timeout)

    def multi_get(self, keys: list[str]) -> list[bytes]:
        """Wait for keys, at most the timeout of this store, and return their values."""
        values: list[bytes] = self._ask("multi_get", keys)
        return values

    def multi_set(self, keys: list[str], values: list[str] | list[bytes]) -> None:
        """Set the values of keys."""
        self._ask("multi_set", keys, values)

    @property
    def _timeout(self) -> timedelta:
        timeout: timedelta = self.timeout  # type: ignore[attr-defined]  # not in torch's stub
        return timeout

    def _ask(self, method: str, *arguments: Any) -> Any:
        self._connection.set_timeout(self._timeout)
        try:
            return getattr(self._connection, method)(*arguments)
        except DistNetworkError:
            self._connection = self._connect_again()
            self._connection.set_timeout(self._timeout)
            return getattr(self._connection, method)(*arguments)
