# SPDX-License-Identifier: Apache-2.0
"""Store server on rank 0: a thread that runs until the engines of all ranks are connected.

Each connection has its own time limit and cannot delay another. A connection may send only a
few kilobytes before it has joined. If the job has a secret, a process without it can neither
set a key nor read one. All values together have a limit, too.
"""

from __future__ import annotations

import asyncio
import socket
import sys
import threading

from smdist.dataparallel.rendezvous.participants import (
    Participant,
    RendezvousConfig,
    mismatch,
    parse_participant,
    report_times,
    waiting_message,
)
from smdist.dataparallel.rendezvous.secret_handshake import (
    RANK_AND_FIRST,
    authenticate_dialer,
    read_frame,
    write_frame,
)
from smdist.dataparallel.rendezvous.store_protocol import (
    STORE_BYTES,
    UNAUTHENTICATED_BYTES,
    VALUE_BYTES,
    Frame,
    FrameError,
    FrameKind,
    require_kind,
)

_JOIN_SECONDS = 15.0  # time limit of a new connection to authenticate and to join
_LEAVE_SECONDS = 30.0  # time limit of all ranks to leave once rank 0 is connected
_FAILURE_SECONDS = 2.0  # time limit of all ranks to receive the reason why rank 0 ends
_MAX_UNJOINED = 256  # connections that have not joined yet; more in a job with more ranks
_MAX_LINES = 20  # log lines about refused connections
_MAX_REASON = 1000  # characters of a reason


class _RefusedError(Exception):
    """Raised when a joining rank is refused; the text is the reason."""


class StoreServer:
    """Key-value store server on rank 0, which runs in its own thread and serves all ranks.

    Thread safety: close() may be called from any thread; all other methods run in the server's
    thread.
    """

    def __init__(self, listener: socket.socket, rendezvous: RendezvousConfig) -> None:
        self._listener = listener
        self._rendezvous = rendezvous
        self._first = rendezvous.participant
        self._values: dict[str, bytes] = {}
        self._stored_bytes = 0
        self._waiters: dict[str, asyncio.Future[None]] = {}
        self._participants: dict[int, Participant] = {}
        self._left: set[int] = set()
        self._failure = ""
        self._culprit = 0  # the rank that caused the failure
        self._unjoined: dict[asyncio.Task[None] | None, None] = {}  # the oldest first
        self._lines = 0
        self._loop = asyncio.new_event_loop()
        self._start = self._loop.time()
        self._closing = asyncio.Event()
        self._changed = asyncio.Event()
        self._thread = threading.Thread(target=self._run, name="smdist-store", daemon=True)
        self._thread.start()

    def close(self, reason: str = "", culprit: int = 0) -> None:
        """Stop the server when all ranks have disconnected, or after 30 seconds.

        A `reason` that is not empty means that the job has failed because of rank `culprit`. Ranks
        that wait for a key then receive both and raise an error. The server stops after at most
        two seconds.
        """
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._end, reason, culprit)
            self._thread.join()

    def _run(self) -> None:
        try:
            self._loop.run_until_complete(self._serve())
            self._loop.run_until_complete(self._drop_all())
        finally:
            self._listener.close()
            self._loop.close()

    async def _serve(self) -> None:
        server = await asyncio.start_server(
            self._receive, sock=self._listener, backlog=socket.SOMAXCONN
        )
        reports = self._loop.create_task(self._report_missing())
        await self._closing.wait()
        reports.cancel()
        end = self._loop.time() + (_FAILURE_SECONDS if self._failure else _LEAVE_SECONDS)
        while self._remaining() and self._loop.time() < end:
            self._changed.clear()
            try:
                await asyncio.wait_for(self._changed.wait(), end - self._loop.time())
            except asyncio.TimeoutError:
                break
        server.close()

    async def _report_missing(self) -> None:
        """Log the missing ranks at increasing intervals, until all have joined."""
        for seconds in report_times(self._rendezvous.report_seconds):
            await asyncio.sleep(max(self._start + seconds - self._loop.time(), 0))
            missing = sorted(set(range(self._first.size)) - self._participants.keys())
            if not missing or self._failure:
                return
            sys.stderr.write(waiting_message(missing, self._rendezvous, seconds))

    def _remaining(self) -> set[int]:
        """Return the ranks that must still disconnect before the server stops.

        After a failure these are only ranks that had joined.
        """
        due = self._participants if self._failure else range(self._first.size)
        return set(due) - self._left

    async def _drop_all(self) -> None:
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _end(self, reason: str, culprit: int) -> None:
        if reason:
            self._fail(reason, culprit)
        self._closing.set()

    async def _receive(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            participant = await self._admit_in_time(reader, writer)
            if participant is not None:
                await self._serve_rank(participant, reader, writer)
        except (_RefusedError, FrameError) as error:
            self._log(f"the connection from {_name(writer)} was refused: {error}")
            writer.write(
                Frame(FrameKind.REFUSED, value=str(error).encode()[:_MAX_REASON]).to_bytes()
            )
        except (OSError, EOFError, asyncio.TimeoutError):
            pass  # an unknown process closed the connection, or _serve_rank has noted the failure
        except asyncio.CancelledError:
            pass  # the server ends; if this task ended as cancelled, asyncio would log a traceback
        finally:
            writer.close()

    async def _admit_in_time(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> Participant | None:
        if len(self._unjoined) >= max(_MAX_UNJOINED, self._first.size):
            oldest = next(iter(self._unjoined))
            del self._unjoined[oldest]
            if oldest is not None:
                oldest.cancel()  # a rank connects again
        task = asyncio.current_task()
        self._unjoined[task] = None
        try:
            return await asyncio.wait_for(self._admit(reader, writer), _JOIN_SECONDS)
        finally:
            self._unjoined.pop(task, None)

    async def _admit(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> Participant | None:
        await authenticate_dialer(reader, writer, self._rendezvous.secret, RANK_AND_FIRST)
        participant = parse_participant(await read_frame(reader, UNAUTHENTICATED_BYTES))
        return await self._join(participant, writer)

    async def _join(
        self, participant: Participant, writer: asyncio.StreamWriter
    ) -> Participant | None:
        why = mismatch(participant, self._first)
        if why:
            raise _RefusedError(why)
        if participant.rank in self._left:
            return None  # a rank that has left waits for the next store, which is not open yet
        if participant.rank in self._participants:
            label = self._participants[participant.rank].label
            raise _RefusedError(f"rank {participant.rank} has joined already, as {label}")
        self._participants[participant.rank] = participant
        await write_frame(writer, Frame(FrameKind.WELCOME, value=self._first.label.encode()))
        return participant

    async def _serve_rank(
        self, participant: Participant, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        reason = f"{participant.label} has ended before all ranks were connected"
        culprit = participant.rank
        try:
            while True:
                timeout = _LEAVE_SECONDS + 2 * self._rendezvous.timeout_seconds
                frame = await asyncio.wait_for(read_frame(reader, VALUE_BYTES), timeout)
                if frame.kind is FrameKind.LEAVE:
                    reason = frame.value.decode(errors="replace")[:_MAX_REASON]
                    culprit = frame.number
                    return
                await write_frame(writer, await self._answer(frame))
        finally:
            self._left.add(participant.rank)
            self._changed.set()
            if reason:
                self._fail(reason, culprit)

    async def _answer(self, frame: Frame) -> Frame:
        require_kind(frame, FrameKind.SET, FrameKind.ADD, FrameKind.GET, FrameKind.DELETE)
        if frame.kind is FrameKind.GET:
            return await self._value(frame.key, frame.number / 1000)
        if frame.kind is FrameKind.DELETE:
            self._remove(frame.key)
            return Frame(FrameKind.VALUE)
        value = self._sum(frame) if frame.kind is FrameKind.ADD else frame.value
        self._store(frame.key, value)
        waiter = self._waiters.pop(frame.key, None)
        if waiter:
            waiter.set_result(None)
        return Frame(FrameKind.VALUE, value=value if frame.kind is FrameKind.ADD else b"")

    def _store(self, key: str, value: bytes) -> None:
        self._remove(key)
        self._stored_bytes += len(key) + len(value)
        if self._stored_bytes > STORE_BYTES:
            raise FrameError(
                f"the key {key!r} does not fit: all keys and values together may have"
                f" {STORE_BYTES} bytes"
            )
        self._values[key] = value

    def _remove(self, key: str) -> None:
        if key in self._values:
            self._stored_bytes -= len(key) + len(self._values.pop(key))

    def _sum(self, frame: Frame) -> bytes:
        try:
            return b"%d" % (int(self._values.get(frame.key, b"0")) + frame.number)
        except ValueError as error:
            raise FrameError(f"the value of the key {frame.key!r} is not a number") from error

    async def _value(self, key: str, timeout_seconds: float) -> Frame:
        if key not in self._values and not self._failure:
            waiter = self._waiters.setdefault(key, self._loop.create_future())
            await asyncio.wait([waiter], timeout=max(timeout_seconds, 0))
        if key in self._values:
            return Frame(FrameKind.VALUE, value=self._values[key])
        if self._failure:
            return Frame(FrameKind.REFUSED, self._culprit, value=self._failure.encode())
        return Frame(FrameKind.TIMED_OUT)

    def _fail(self, reason: str, culprit: int) -> None:
        """Send the reason and the culprit of a failure to all ranks that wait for a key.

        Ranks that wait later receive them as well. If there was a failure before, its
        reason is sent instead of this one.
        """
        if not self._failure:
            self._failure, self._culprit = reason[:_MAX_REASON], culprit
        for waiter in self._waiters.values():
            waiter.set_result(None)
        self._waiters.clear()

    def _log(self, line: str) -> None:
        self._lines += 1
        if self._lines <= _MAX_LINES:
            sys.stderr.write(f"smdist: store server of {self._first.label}: {line}\n")


def _name(writer: asyncio.StreamWriter) -> str:
    peer = writer.get_extra_info("peername") or ("an unknown address", 0)
    return f"{peer[0]} port {peer[1]}"
