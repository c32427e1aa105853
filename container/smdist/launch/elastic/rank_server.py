# SPDX-License-Identifier: Apache-2.0
"""Unix socket at which a launcher answers the ranks of its host (`smdist.elastic.agent_client`)."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

MAX_REQUEST: Final = 1 << 24  # bytes of one request, a line of JSON
Answer = Callable[[int, dict[str, Any]], Awaitable[dict[str, Any]]]


class RankServer:
    """Server of one host's ranks, which answers a rank's requests one by one. Thread safety: none.

    Args:
        answer: Function that gets a local rank's number and its request, and returns the reply.

    Attributes:
        ranks: Local ranks that have connected, now or before.
    """

    def __init__(self, answer: Answer) -> None:
        self._answer = answer
        self._server: asyncio.Server | None = None
        self.ranks: set[int] = set()

    async def start(self, path: Path) -> None:
        """Listen at the Unix socket `path`, whose directory only this user can enter."""
        self._server = await asyncio.start_unix_server(self._serve, str(path), limit=MAX_REQUEST)

    def close(self) -> None:
        """Stop listening."""
        if self._server is not None:
            self._server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError, ValueError, KeyError, TypeError, asyncio.CancelledError):
            while line := await reader.readline():
                request = json.loads(line)
                local_rank = int(request["local_rank"])
                self.ranks.add(local_rank)
                reply = await self._answer(local_rank, request)
                writer.write(json.dumps(reply).encode() + b"\n")
                await writer.drain()
        writer.close()
