# SPDX-License-Identifier: Apache-2.0
"""Thread of a launcher by which the hosts of an elastic job agree on who goes on.

    ranks of this host ──▶ RankServer ──▶ ElasticAgent ◀── PeerLink ──▶ agents of the other hosts
                                          Membership: who is left, who leads
                                          GenerationStore: on the leader, for the ranks to connect

There is no central place: the agents are connected with each other from the start of the job, so
any host may be lost, also the first one. See `membership` for the rules.
"""

from __future__ import annotations

import asyncio
import secrets
import threading
from collections.abc import Callable, Coroutine, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from sagemaker_dist.errors import LaunchError
from smdist.dataparallel.rendezvous.store_protocol import FrameError
from smdist.launch.elastic.generation_store import BROKEN, GenerationStore, Reply
from smdist.launch.elastic.membership import Decision, Follow, Loss, Membership, ReformRefusal, Wait
from smdist.launch.elastic.peer_link import PeerLink, SilentError, accept, dial
from smdist.launch.elastic.rank_server import RankServer
from smdist.launch.elastic.refusals import (
    DROPPED,
    NOT_STARTED,
    dropped_fields,
    lost_hosts,
    not_started_fields,
    refusal_fields,
    sentence_of,
)

PrintLine = Callable[[str], None]

_DIAL_PAUSE_SECONDS: Final = 0.1
_CULPRIT_SECONDS: Final = 10.0  # time of a host that the ranks named as lost, to become ready
_TICK_SECONDS: Final = 0.2
_FOLLOW_SECONDS: Final = 20.0  # a leader decides at most this much later than it waits itself
_SESSION_BYTES: Final = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class ElasticPlace:
    """Place of a host in an elastic job.

    Attributes:
        me: Number of this host, from 0.
        labels: Names of all hosts in messages, by number.
        addresses: IP addresses of all hosts, by number.
        port: Port at which every launcher listens.
        least: The option elastic_min.
        local_size: Ranks of this host, and of every other.
        start_timeout_seconds: Seconds that the launchers wait for each other at the start.
        timeout_seconds: Seconds that a host may take to become ready after a loss.
        socket: Path of the Unix socket for this host's ranks.
        secret: Secret of the job, or None.
    """

    me: int
    labels: tuple[str, ...]
    addresses: tuple[str, ...]
    port: int
    least: int
    local_size: int
    start_timeout_seconds: float
    timeout_seconds: float
    socket: Path
    secret: bytes | None = field(default=None, repr=False)


class ElasticAgent:
    """Agent of one host. It runs in a thread of its own, from `start` to `close`.

    Thread safety: the public methods may be called from any thread; all others run in the agent's
    own thread.

    Args:
        place: Place of this host in the job.
        print_line: Function that prints a line in this host's log.
    """

    def __init__(self, place: ElasticPlace, print_line: PrintLine) -> None:
        self._place = place
        self._print_line = print_line
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="smdist-elastic", daemon=True)
        self._listening = threading.Event()
        self._start_error: OSError | None = None
        self._others_ended = threading.Event()
        self._connected = threading.Event()
        self._closing = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()
        self._links: dict[int, PeerLink] = {}
        self._server = RankServer(self._answer)
        self._membership = Membership(place.me, len(place.labels), place.least)
        self._session = ""
        self._store = GenerationStore()
        self._forwarded: dict[int, asyncio.Future[Reply]] = {}
        self._num_forwarded = 0
        self._waiting: dict[int, asyncio.Future[Reply]] = {}
        self._culprits: set[int] = set()
        self._ready_at = 0.0
        self._followed: tuple[int, int] | None = None
        self._refused: Reply | None = None
        self._why_ended = ""
        self._has_begun = True

    # Methods for the launcher's thread.

    def start(self) -> None:
        """Listen for ranks and for other hosts, and begin to connect to the other hosts.

        Raises:
            LaunchError: The port is in use.
        """
        self._thread.start()
        self._listening.wait()
        if self._start_error is not None:
            error = self._start_error
            raise LaunchError(
                f"the launcher cannot use port {self._place.port} of"
                f" {self._place.labels[self._place.me]}",
                error.strerror or str(error),
                "Set the environment variable SMDIST_MASTER_PORT to another port, with the same"
                " value on all hosts of the job",
                about="SMDIST_MASTER_PORT",
                kind="conflict",
            ) from error

    def leave(self, why: str, *, has_begun: bool = True) -> None:
        """Tell the other hosts that ranks of this host have ended, so that the host is lost.

        Args:
            why: End of a sentence that begins with this host's name.
            has_begun: False if a rank has ended before it was connected with the other ranks. These
                cannot connect without it, and the job ends.
        """
        self._call(self._leave, why, has_begun)

    def finish(self) -> None:
        """Tell the other hosts that all ranks of this host have ended with success."""
        self._call(self._broadcast, {"kind": "finished"})

    def wait_for_others(self, seconds: float) -> bool | None:
        """Wait until no other host trains any more; return None if one does after `seconds`.

        Return True if the ranks of another host have all ended with success, else False.
        """
        if not self._others_ended.wait(seconds):
            return None
        return bool(self._membership.finished)

    def wait_until_connected(self, seconds: float) -> bool:
        """Wait until this host is connected with all others; return False after `seconds`."""
        return self._connected.wait(seconds)

    @property
    def members(self) -> tuple[int, ...]:
        """Numbers of the hosts of the last generation that this host knows."""
        return self._membership.members

    @property
    def has_ranks(self) -> bool:
        """True if the script on this host has called `smdist.elastic.run`."""
        return bool(self._server.ranks)

    @property
    def is_refused(self) -> bool:
        """True if no generation can follow, so that the job ends."""
        return self._refused is not None

    @property
    def end(self) -> Mapping[str, Any] | None:
        """Fields of the error for which the launcher ends its ranks; None if it does not.

        The other hosts have left this host out, or the ranks cannot connect. In any other case that
        ends the job, ranks wait for a generation, and raise the error themselves.
        """
        error = self._refused["error"] if self._refused is not None else None
        return error if error is not None and error["kind"] in (DROPPED, NOT_STARTED) else None

    def close(self) -> None:
        """Close all connections and end the thread."""
        if self._thread.is_alive():
            self._call(self._closing.set)
            self._thread.join()
        self._loop.close()

    def _call(self, function: Callable[..., Any], *args: Any) -> None:
        with suppress(RuntimeError):  # the loop has ended
            self._loop.call_soon_threadsafe(function, *args)

    # Connections.

    def _run(self) -> None:
        try:
            self._loop.run_until_complete(self._main())
        finally:
            self._listening.set()
            self._loop.close()

    async def _main(self) -> None:
        place = self._place
        try:
            listener = await asyncio.start_server(
                self._on_connection, place.addresses[place.me], place.port
            )
            await self._server.start(place.socket)
        except OSError as error:
            self._start_error = error
            return
        self._listening.set()
        self._check_others()
        self._check_connected()
        for host in range(place.me):
            self._spawn(self._connect(host))
        await self._closing.wait()
        listener.close()
        self._server.close()
        await asyncio.gather(*(link.close() for link in self._links.values()))
        current = asyncio.current_task()
        tasks = [task for task in asyncio.all_tasks() if task is not current]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await asyncio.sleep(0)  # the loop closes the sockets of these tasks

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = self._loop.create_task(work)
        self._tasks.add(task)  # the loop itself keeps only weak references
        task.add_done_callback(self._tasks.discard)

    async def _connect(self, host: int) -> None:
        place = self._place
        end = self._loop.time() + place.start_timeout_seconds
        why = ""
        while self._loop.time() < end:
            try:
                link = await asyncio.wait_for(
                    dial(place.addresses[host], place.port, place.me, host, place.secret),
                    max(1.0, end - self._loop.time()),
                )
            except (OSError, EOFError, asyncio.TimeoutError, FrameError) as error:
                why = str(error) or type(error).__name__
                await asyncio.sleep(_DIAL_PAUSE_SECONDS)
                continue
            await self._serve_peer(link)
            return
        why = f"its launcher has not connected: {why}"
        self._lose([Loss(host=host, why=why, is_certain=False)])

    async def _on_connection(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        try:
            link = await accept(reader, writer, self._place.me, self._place.secret)
        except (OSError, EOFError, FrameError, asyncio.CancelledError):
            writer.close()
            return
        is_known = link.host in self._links or link.host in self._membership.losses
        if is_known or not self._place.me < link.host < len(self._place.labels):
            writer.close()  # a host connects once, and a lost host stays lost
            return
        with suppress(asyncio.CancelledError):  # the agent ends
            await self._serve_peer(link)

    async def _serve_peer(self, link: PeerLink) -> None:
        self._links[link.host] = link
        self._check_connected()
        if self._why_ended:
            link.send(self._gone())
        try:
            while message := await link.receive():
                self._on_message(link, message)
            why, is_certain = "its launcher has ended", True
        except SilentError as error:
            why, is_certain = f"it does not reply ({error})", False
        except (KeyError, TypeError, ValueError) as error:
            why, is_certain = f"it sent a message that is not of this release ({error!r})", False
        await link.close()
        if link.host not in self._membership.finished:
            self._lose([Loss(host=link.host, why=why, is_certain=is_certain)])

    def _check_connected(self) -> None:
        if len(self._links) == len(self._place.labels) - 1:
            self._connected.set()

    def _broadcast(self, message: dict[str, Any], hosts: Iterable[int] | None = None) -> None:
        for host in list(self._links) if hosts is None else hosts:
            if host in self._links:
                self._links[host].send(message)

    def _on_message(self, link: PeerLink, message: dict[str, Any]) -> None:
        kind, membership = message["kind"], self._membership
        if kind == "store":
            self._spawn(self._answer_peer(link, message))
        elif kind == "stored":
            self._settle(self._forwarded.pop(message["id"], None), message["reply"])
        elif kind == "ready":
            if message["culprit"] is not None:
                self._culprits.add(message["culprit"])
            membership.set_ready(link.host, message["generation"], message["members"])
            self._step()
        elif kind == "decision":
            decision = Decision(message["generation"], tuple(message["members"]))
            self._enter(decision, message["session"])
        elif kind == "gone":
            self._lose([Loss(host=link.host, why=message["why"], is_certain=True)])
            if not message["has_begun"] and self._refused is None:
                label = self._place.labels[link.host]
                self._refuse(not_started_fields(label, message["why"]))
        elif kind == "finished":
            membership.finish(link.host)
            self._check_others()
            self._step()
        elif kind == "refused":
            self._refuse(message["error"])
        elif kind == "dropped":
            self._refuse(dropped_fields(self._place.labels[self._place.me]))

    # Agreement.

    def _leave(self, why: str, has_begun: bool) -> None:
        self._why_ended, self._has_begun = why, has_begun
        self._membership.lose(Loss(host=self._place.me, why=why, is_certain=True))
        self._broadcast(self._gone())

    def _gone(self) -> dict[str, Any]:
        return {"kind": "gone", "why": self._why_ended, "has_begun": self._has_begun}

    def _lose(self, losses: Iterable[Loss]) -> None:
        membership = self._membership
        new = [loss for loss in losses if membership.lose(loss)]
        if not new:
            return
        if not membership.is_whole:
            self._break_off()
        alive = membership.alive
        if alive and alive[0] == self._place.me and not self._closing.is_set():
            lost = sentence_of(lost_hosts(self._place.labels, new))
            self._print_line(f"lost {lost}. Hosts left: {len(alive)} of {len(self._place.labels)}")
        self._check_others()
        self._step()

    def _check_others(self) -> None:
        ended = self._membership.finished | set(self._membership.losses)
        if len(ended - {self._place.me}) >= len(self._place.labels) - 1:
            self._others_ended.set()

    def _break_off(self) -> None:
        self._store.break_off()
        for future in self._forwarded.values():
            self._settle(future, BROKEN)
        self._forwarded.clear()

    def _step(self) -> None:
        place, membership = self._place, self._membership
        step = membership.next_step()
        if isinstance(step, ReformRefusal):
            error = refusal_fields(step, place.labels, membership.losses, place.least)
            self._broadcast({"kind": "refused", "error": error}, membership.alive)
            self._refuse(error)
        elif isinstance(step, Follow) and self._followed != (step.leader, membership.generation):
            self._followed = step.leader, membership.generation
            culprit = next(iter(self._culprits), None)
            ready = {"kind": "ready", "generation": membership.generation, "culprit": culprit}
            self._broadcast({**ready, "members": membership.members}, [step.leader])
        elif isinstance(step, Decision):
            session = secrets.token_hex(_SESSION_BYTES)
            decision = {"generation": step.generation, "members": step.members}
            self._broadcast({"kind": "decision", "session": session, **decision}, step.members)
            self._enter(step, session)

    def _enter(self, decision: Decision, session: str) -> None:
        membership = self._membership
        if decision.generation != membership.generation and not membership.adopt(decision):
            return
        self._break_off()
        self._session, self._store, self._followed = session, GenerationStore(), None
        self._culprits.clear()
        if not membership.is_whole:
            self._store.break_off()
        for future in self._waiting.values():
            self._settle(future, self._generation())
        self._waiting.clear()

    def _refuse(self, error: dict[str, Any]) -> None:
        self._refused = {"kind": "refused", "error": error}
        self._break_off()
        for future in self._waiting.values():
            self._settle(future, self._refused)
        self._waiting.clear()

    def _generation(self) -> Reply:
        membership, place = self._membership, self._place
        return {
            "kind": "generation",
            "generation": membership.generation,
            "session": self._session,
            "position": membership.members.index(place.me),
            "hosts": [place.labels[host] for host in membership.members],
            "local_size": place.local_size,
            "lost": lost_hosts(place.labels, membership.losses.values()),
        }

    async def _drop_late_hosts(self) -> None:
        """Leave out hosts that do not become ready in time, until this host has a decision."""
        while self._membership.is_ready and self._refused is None:
            step = self._membership.next_step()
            waited = self._loop.time() - self._ready_at
            hosts = step.hosts if isinstance(step, Wait) else ()
            further = 0.0
            if isinstance(step, Follow):
                hosts, further = (step.leader,), _FOLLOW_SECONDS
            for host in hosts:
                limit = self._place.timeout_seconds + further
                if host in self._culprits:
                    limit = min(limit, _CULPRIT_SECONDS)
                if waited > limit:
                    self._drop(host, limit)
            await asyncio.sleep(_TICK_SECONDS)

    def _drop(self, host: int, seconds: float) -> None:
        if link := self._links.get(host):
            link.send({"kind": "dropped"})
            self._spawn(link.close())
        why = f"it did not become ready within {seconds:g} s"
        self._lose([Loss(host=host, why=why, is_certain=False)])

    # Requests of ranks.

    async def _answer(self, local_rank: int, request: dict[str, Any]) -> Reply:
        if request["op"] == "hello":
            return {"kind": "hello", "labels": list(self._place.labels)}
        if request["op"] == "reform":
            return await self._reform(local_rank, request)
        if request["generation"] != self._membership.generation or not self._membership.is_whole:
            return BROKEN
        leader = self._membership.members[0]
        if leader == self._place.me:
            return await self._store.answer(request)
        self._num_forwarded += 1
        future: asyncio.Future[Reply] = self._loop.create_future()
        self._forwarded[self._num_forwarded] = future
        message = {"kind": "store", "id": self._num_forwarded, "request": request}
        self._broadcast(message, [leader])
        return await future

    async def _answer_peer(self, link: PeerLink, message: dict[str, Any]) -> None:
        request, reply = message["request"], BROKEN
        is_member = link.host in self._membership.members
        if request["generation"] == self._membership.generation and is_member:
            reply = await self._store.answer(request)
        link.send({"kind": "stored", "id": message["id"], "reply": reply})

    async def _reform(self, local_rank: int, request: dict[str, Any]) -> Reply:
        if self._refused is not None:
            return self._refused
        membership = self._membership
        if membership.generation > request["generation"]:
            return self._generation()
        future: asyncio.Future[Reply] = self._loop.create_future()
        self._waiting[local_rank] = future
        if request["culprit"] is not None:
            self._culprits.add(membership.members[request["culprit"] // self._place.local_size])
            self._culprits.discard(self._place.me)
        if len(self._waiting) == self._place.local_size:
            self._ready_at, self._followed = self._loop.time(), None
            membership.set_ready(self._place.me, membership.generation, membership.members)
            self._spawn(self._drop_late_hosts())
            self._step()
        return await future

    @staticmethod
    def _settle(future: asyncio.Future[Reply] | None, reply: Reply) -> None:
        if future is not None and not future.done():
            future.set_result(reply)
