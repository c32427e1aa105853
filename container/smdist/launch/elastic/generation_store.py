# SPDX-License-Identifier: Apache-2.0
"""Key-value store of one generation of an elastic job, in the launcher of its leader."""

from __future__ import annotations

import asyncio
from typing import Any, Final

MAX_BYTES: Final = 1 << 26  # limit of all keys and values of a generation together
Reply = dict[str, Any]
BROKEN: Final[Reply] = {"kind": "broken"}


class GenerationStore:
    """Map from keys to texts, for the ranks of one generation. Thread safety: none.

    Every reply is {"kind": "value", "value": text}, {"kind": "timed_out"}, or {"kind": "broken"}
    after `break_off`, which ends all waits.
    """

    def __init__(self) -> None:
        self._values: dict[str, str] = {}
        self._bytes = 0
        self._changed = asyncio.Event()
        self._is_broken = False

    def break_off(self) -> None:
        """End the store, because a host of the generation was lost."""
        self._is_broken = True
        self._wake()

    async def answer(self, request: dict[str, Any]) -> Reply:
        """Carry out one request and return the reply.

        Args:
            request: "op" ("set", "get", "add", "delete" or "has"), "key", and "value" for "set",
                "count" for "add", or "seconds" to wait for "get".
        """
        op, key = request["op"], str(request["key"])
        if op == "get":
            return await self._get(key, float(request["seconds"]))
        if self._is_broken:
            return BROKEN
        if op == "has":
            return _value("1" if key in self._values else "")
        if op == "delete":
            return _value("1" if self._remove(key) else "")
        value = str(request.get("value", ""))
        if op == "add":
            value = str(int(self._values.get(key, "0")) + int(request["count"]))
        self._remove(key)
        self._bytes += len(key) + len(value)
        if self._bytes > MAX_BYTES:
            return {"kind": "too_long"}
        self._values[key] = value
        self._wake()
        return _value(value if op == "add" else "")

    async def _get(self, key: str, seconds: float) -> Reply:
        loop = asyncio.get_running_loop()
        end = loop.time() + seconds
        while not self._is_broken and key not in self._values:
            left = end - loop.time()
            if left <= 0:
                return {"kind": "timed_out"}
            changed = self._changed
            try:
                await asyncio.wait_for(changed.wait(), left)
            except asyncio.TimeoutError:
                continue
        return BROKEN if self._is_broken else _value(self._values[key])

    def _remove(self, key: str) -> bool:
        if key not in self._values:
            return False
        self._bytes -= len(key) + len(self._values.pop(key))
        return True

    def _wake(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()


def _value(text: str) -> Reply:
    return {"kind": "value", "value": text}
