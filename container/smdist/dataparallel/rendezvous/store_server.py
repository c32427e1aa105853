# SPDX-License-Identifier: Apache-2.0
"""Store server on rank 0: one thread, which runs until all ranks are connected.

Each connection has its own deadline and cannot delay another. An unauthenticated
connection may send only a few bytes. If the job has a secret, a process without it
can neither set a key nor read one.
"""

from __future__ import annotations

import asyncio
import os
import socket
import sys
import threading

from smdist.dataparallel.rendezvous.participants import (
    Meeting,
    Participant,
    mismatch,
    participant_of,
    tellings,
    waiting,
)
from smdist.dataparallel.rendezvous.store_protocol import (
    HEAD_BYTES,
    NONCE_BYTES,
    STRANGER_BYTES,
    VALUE_BYTES,
    Frame,
    FrameError,
    FrameKind,
    expect,
    greeting,
    has_secret,
    parse_frame,
    parse_head,
    proof,
    proves,
)

_STRANGER_SECONDS = 15.0  # for a new connection to authenticate and to join
_FAREWELL_SECONDS = 30.0  # for all ranks to leave once rank 0 is connected
_NEWS_SECONDS = 2.0  # for all ranks to receive the reason why rank 0 ends
_MOST_STRANGERS = 256
_MOST_LINES = 20
_WORDS = 1000  # maximum length of a reason, in characters


class _RefusedError(Exception):
    """A joining rank is refused; the text is the reason."""


class MeetingPlace:
    """Server of the store's keys and of the connections of all ranks.

    Thread safety: close() may be called from any thread; the rest runs on the server's own.
    """

    def __init__(self, listener: socket.socket, meeting: Meeting) -> None:
        self._listener = listener
        self._meeting = meeting
        self._first = meeting.participant
        self._words: dict[str, bytes] = {}
        self._arrivals: dict[str, asyncio.Future[None]] = {}
        self._participants: dict[int, Participant] = {}
        self._left: set[int] = set()
        self._failure = ""
        self._strangers = 0
        self._lines = 0
        self._loop = asyncio.new_event_loop()
        self._began = self._loop.time()
        self._over = asyncio.Event()
        self._changed = asyncio.Event()
        self._thread = threading.Thread(target=self._run, name="smdist-meeting", daemon=True)
        self._thread.start()

    def close(self, reason: str = "") -> None:
        """Stop when all ranks have left. With a reason, fail all ranks with it and stop soon."""
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._end, reason)
            self._thread.join()

    def _run(self) -> None:
        try:
            self._loop.run_until_complete(self._serve())
            self._loop.run_until_complete(self._drop_all())
        finally:
            self._listener.close()
            self._loop.close()

    async def _serve(self) -> None:
        server = await asyncio.start_server(self._receive, sock=self._listener)
        telling = self._loop.create_task(self._tell())
        await self._over.wait()
        telling.cancel()
        end = self._loop.time() + (_NEWS_SECONDS if self._failure else _FAREWELL_SECONDS)
        while self._awaited() and self._loop.time() < end:
            self._changed.clear()
            try:
                await asyncio.wait_for(self._changed.wait(), end - self._loop.time())
            except asyncio.TimeoutError:
                break
        server.close()

    async def _tell(self) -> None:
        """Log the missing ranks from time to time."""
        for seconds in tellings(self._meeting.quiet_seconds):
            await asyncio.sleep(max(self._began + seconds - self._loop.time(), 0))
            missing = sorted(set(range(self._first.size)) - self._participants.keys())
            if not missing or self._failure:
                return
            sys.stderr.write(waiting(missing, self._meeting, seconds))

    def _awaited(self) -> set[int]:
        """Return the ranks that have not left; after a failure only those that had joined."""
        due = self._participants if self._failure else range(self._first.size)
        return set(due) - self._left

    async def _drop_all(self) -> None:
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _end(self, reason: str) -> None:
        if reason:
            self._fail(reason)
        self._over.set()

    async def _receive(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            participant = await self._welcome(reader, writer)
            if participant is not None:
                await self._attend(participant, reader, writer)
        except (_RefusedError, FrameError) as error:
            self._say(f"{_name(writer)} was refused: {error}")
            writer.write(Frame(FrameKind.REFUSED, value=str(error).encode()[:_WORDS]).to_bytes())
        except (OSError, EOFError, asyncio.TimeoutError):
            pass  # an unknown process that hung up or sent nothing, or a rank that _attend reports
        finally:
            writer.close()

    async def _welcome(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> Participant | None:
        if self._strangers >= _MOST_STRANGERS:
            return None
        self._strangers += 1
        try:
            return await asyncio.wait_for(self._admit(reader, writer), _STRANGER_SECONDS)
        finally:
            self._strangers -= 1

    async def _admit(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> Participant | None:
        theirs = await _read(reader, STRANGER_BYTES)
        knows, secret = has_secret(theirs), self._meeting.secret
        ours = greeting(os.urandom(NONCE_BYTES), secret)
        await _write(writer, ours)
        if knows != (secret is not None):
            raise _RefusedError("a secret file is set there or here, not on both sides")
        if secret is not None:
            said = await _read(reader, STRANGER_BYTES)
            if not proves(said, proof(secret, "rank", theirs, ours)):
                raise _RefusedError("it has another secret")
            await _write(
                writer, Frame(FrameKind.PROOF, value=proof(secret, "rank 0", theirs, ours))
            )
        participant = participant_of(await _read(reader, STRANGER_BYTES))
        return await self._enter(participant, writer)

    async def _enter(
        self, participant: Participant, writer: asyncio.StreamWriter
    ) -> Participant | None:
        why = mismatch(participant, self._first)
        if why:
            raise _RefusedError(why)
        if participant.rank in self._left:
            return None  # left already: wants the next store, which is not open yet
        if participant.rank in self._participants:
            there = self._participants[participant.rank].label
            raise _RefusedError(f"rank {participant.rank} is here already: {there}")
        self._participants[participant.rank] = participant
        await _write(writer, Frame(FrameKind.WELCOME, value=self._first.label.encode()))
        return participant

    async def _attend(
        self, participant: Participant, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        reason = f"{participant.label} has gone before all ranks had met"
        try:
            while True:
                patience = _FAREWELL_SECONDS + 2 * self._meeting.patience_seconds
                frame = await asyncio.wait_for(_read(reader, VALUE_BYTES), patience)
                if frame.kind is FrameKind.BYE:
                    reason = frame.value.decode(errors="replace")[:_WORDS]
                    return
                await _write(writer, await self._answer(frame))
        finally:
            self._left.add(participant.rank)
            self._changed.set()
            if reason:
                self._fail(reason)

    async def _answer(self, frame: Frame) -> Frame:
        expect(frame, FrameKind.SET, FrameKind.ADD, FrameKind.GET)
        if frame.kind is FrameKind.GET:
            return await self._word(frame.key, frame.number / 1000)
        word = self._sum(frame) if frame.kind is FrameKind.ADD else frame.value
        self._words[frame.key] = word
        arrival = self._arrivals.pop(frame.key, None)
        if arrival:
            arrival.set_result(None)
        return Frame(FrameKind.VALUE, value=word if frame.kind is FrameKind.ADD else b"")

    def _sum(self, frame: Frame) -> bytes:
        try:
            return b"%d" % (int(self._words.get(frame.key, b"0")) + frame.number)
        except ValueError as error:
            raise FrameError(f"{frame.key!r} is no number to add to") from error

    async def _word(self, key: str, patience_seconds: float) -> Frame:
        if key not in self._words and not self._failure:
            arrival = self._arrivals.setdefault(key, self._loop.create_future())
            await asyncio.wait([arrival], timeout=max(patience_seconds, 0))
        if key in self._words:
            return Frame(FrameKind.VALUE, value=self._words[key])
        if self._failure:
            return Frame(FrameKind.REFUSED, value=self._failure.encode())
        return Frame(FrameKind.LATE)

    def _fail(self, reason: str) -> None:
        """Wake all ranks that wait for a key and give them the reason; the first reason counts."""
        self._failure = self._failure or reason[:_WORDS]
        for arrival in self._arrivals.values():
            arrival.set_result(None)
        self._arrivals.clear()

    def _say(self, line: str) -> None:
        self._lines += 1
        if self._lines <= _MOST_LINES:
            sys.stderr.write(f"smdist: at the meeting place of {self._first.label}, {line}\n")


async def _read(reader: asyncio.StreamReader, most_bytes: int) -> Frame:
    head = parse_head(await reader.readexactly(HEAD_BYTES), most_bytes)
    return parse_frame(head, await reader.readexactly(head.body_bytes))


async def _write(writer: asyncio.StreamWriter, frame: Frame) -> None:
    writer.write(frame.to_bytes())
    await writer.drain()


def _name(writer: asyncio.StreamWriter) -> str:
    peer = writer.get_extra_info("peername") or ("somebody", 0)
    return f"{peer[0]} port {peer[1]}"
