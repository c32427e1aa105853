# SPDX-License-Identifier: Apache-2.0
"""The meeting place that rank 0 keeps: one thread, until all ranks have met.

Whoever comes has its own deadline and holds up nobody else. What a stranger
sends is read up to a few bytes and thrown away; where the job has a secret,
nobody who does not know it leaves a word here or reads one.
"""

from __future__ import annotations

import asyncio
import os
import socket
import sys
import threading

from smdist.dataparallel.rendezvous.frames import (
    HEAD_BYTES,
    NONCE_BYTES,
    STRANGER_BYTES,
    VALUE_BYTES,
    Frame,
    FrameError,
    Kind,
    expect,
    greeting,
    has_secret,
    parse_frame,
    parse_head,
    proof,
    proves,
)
from smdist.dataparallel.rendezvous.meeting import (
    Guest,
    Meeting,
    guest_of,
    mismatch,
    tellings,
    waiting,
)

_STRANGER_SECONDS = 15.0  # to prove itself and to say who it is
_FAREWELL_SECONDS = 30.0  # for all to leave once rank 0 has what it came for
_NEWS_SECONDS = 2.0  # for all to hear why rank 0 ends
_MOST_STRANGERS = 256
_MOST_LINES = 20
_WORDS = 1000  # characters of a reason


class _RefusedError(Exception):
    """A guest that cannot stay, and why."""


class MeetingPlace:
    """The store's words, and the connections of all ranks.

    Thread safety: close() may be called from any thread; all else runs on its own.
    """

    def __init__(self, listener: socket.socket, meeting: Meeting) -> None:
        self._listener = listener
        self._meeting = meeting
        self._first = meeting.guest
        self._words: dict[str, bytes] = {}
        self._arrivals: dict[str, asyncio.Future[None]] = {}
        self._guests: dict[int, Guest] = {}
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
        """End it when all have left; with a reason soon, and all others hear of it."""
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
        """Say now and then who has not come."""
        for seconds in tellings(self._meeting.quiet_seconds):
            await asyncio.sleep(max(self._began + seconds - self._loop.time(), 0))
            missing = sorted(set(range(self._first.size)) - self._guests.keys())
            if not missing or self._failure:
                return
            sys.stderr.write(waiting(missing, self._meeting, seconds))

    def _awaited(self) -> set[int]:
        """Who has not left: of all ranks, or once the meeting has failed of those that came."""
        due = self._guests if self._failure else range(self._first.size)
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
            guest = await self._welcome(reader, writer)
            if guest is not None:
                await self._attend(guest, reader, writer)
        except (_RefusedError, FrameError) as error:
            self._say(f"{_name(writer)} was refused: {error}")
            writer.write(Frame(Kind.REFUSED, value=str(error).encode()[:_WORDS]).to_bytes())
        except (OSError, EOFError, asyncio.TimeoutError):
            pass  # a stranger that hung up or said nothing, or a rank that _attend tells of
        finally:
            writer.close()

    async def _welcome(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> Guest | None:
        if self._strangers >= _MOST_STRANGERS:
            return None
        self._strangers += 1
        try:
            return await asyncio.wait_for(self._admit(reader, writer), _STRANGER_SECONDS)
        finally:
            self._strangers -= 1

    async def _admit(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> Guest | None:
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
            await _write(writer, Frame(Kind.PROOF, value=proof(secret, "rank 0", theirs, ours)))
        guest = guest_of(await _read(reader, STRANGER_BYTES))
        return await self._enter(guest, writer)

    async def _enter(self, guest: Guest, writer: asyncio.StreamWriter) -> Guest | None:
        why = mismatch(guest, self._first)
        if why:
            raise _RefusedError(why)
        if guest.rank in self._left:
            return None  # it comes for the next meeting, which has not opened yet
        if guest.rank in self._guests:
            there = self._guests[guest.rank].label
            raise _RefusedError(f"rank {guest.rank} is here already: {there}")
        self._guests[guest.rank] = guest
        await _write(writer, Frame(Kind.WELCOME, value=self._first.label.encode()))
        return guest

    async def _attend(
        self, guest: Guest, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        reason = f"{guest.label} has gone before all ranks had met"
        try:
            while True:
                patience = _FAREWELL_SECONDS + 2 * self._meeting.patience_seconds
                frame = await asyncio.wait_for(_read(reader, VALUE_BYTES), patience)
                if frame.kind is Kind.BYE:
                    reason = frame.value.decode(errors="replace")[:_WORDS]
                    return
                await _write(writer, await self._answer(frame))
        finally:
            self._left.add(guest.rank)
            self._changed.set()
            if reason:
                self._fail(reason)

    async def _answer(self, frame: Frame) -> Frame:
        expect(frame, Kind.SET, Kind.ADD, Kind.GET)
        if frame.kind is Kind.GET:
            return await self._word(frame.key, frame.number / 1000)
        word = self._sum(frame) if frame.kind is Kind.ADD else frame.value
        self._words[frame.key] = word
        arrival = self._arrivals.pop(frame.key, None)
        if arrival:
            arrival.set_result(None)
        return Frame(Kind.VALUE, value=word if frame.kind is Kind.ADD else b"")

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
            return Frame(Kind.VALUE, value=self._words[key])
        if self._failure:
            return Frame(Kind.REFUSED, value=self._failure.encode())
        return Frame(Kind.LATE)

    def _fail(self, reason: str) -> None:
        """Whoever waits for a word hears why it will not come; the first reason counts."""
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
