# SPDX-License-Identifier: Apache-2.0
"""Matching of sends and receives, also for a receive from any source.

Sends from one rank to another under one tag are numbered, and so are the receives
there: send k matches receive k.

    send    the sender sends SEND(k) to the receiver
    receive the receiver sends READY(k) to the sender; from any source it waits for the
            first SEND of this tag that is bound to no receive, and binds to it
    READY   lets the message leave, once the send is posted, too
    DATA    the message, into the memory of the receive

Invariants: the protocol always completes, a message arrives only where a receive waits for
it, and every send has one receive.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from model.explorer import Action, FaultError

ANY = -1


class Request(NamedTuple):
    """Request that a rank posts. `peer` may be ANY for a receive."""

    kind: str  # send, receive
    peer: int
    tag: int = 0


class Message(NamedTuple):
    """Send with its matching receive."""

    source: int
    target: int
    tag: int
    number: int


class Frame(NamedTuple):
    """Frame in flight."""

    source: int
    target: int
    kind: str  # SEND, READY, DATA
    message: Message


class State(NamedTuple):
    """State of all ranks and of the network."""

    posted: tuple[int, ...]  # number of posted requests, by rank
    frames: tuple[Frame, ...]  # in flight; those between two ranks are in order
    announced: tuple[Message, ...]  # received SENDs, in order
    waiting: tuple[tuple[int, int], ...]  # unbound receives from any source: rank, tag
    bound: frozenset[Message]  # messages with a receive
    ready: frozenset[Message]  # messages with a receive that the sender knows of
    arrived: frozenset[Message]


@dataclass(frozen=True, slots=True)
class PointToPoint:
    """State machine; for each rank, the requests in the order in which it posts them."""

    requests: tuple[tuple[Request, ...], ...]

    def start(self) -> State:
        nothing: frozenset[Message] = frozenset()
        return State((0,) * len(self.requests), (), (), (), nothing, nothing, nothing)

    # ------------------------------------------------------------- possible actions

    def actions(self, state: State) -> Iterator[Action]:
        for rank, requests in enumerate(self.requests):
            if state.posted[rank] < len(requests):
                yield Action("post", (rank,))
        first = {frame[:2]: frame for frame in reversed(state.frames)}
        for frame in first.values():
            yield Action("deliver", frame)

    def do(self, state: State, action: Action) -> State:
        if action.name == "post":
            return self._post(state, *action.arguments)
        frame = Frame(*action.arguments)
        frames = list(state.frames)
        frames.remove(frame)
        state = state._replace(frames=tuple(frames))
        return getattr(self, f"_take_{frame.kind.lower()}")(state, frame.message)

    # -------------------------------------------------------------------- the rules

    def _post(self, state: State, rank: int) -> State:
        request = self.requests[rank][state.posted[rank]]
        sends = self._sends(state)
        counts = (count + (each == rank) for each, count in enumerate(state.posted))
        state = state._replace(posted=tuple(counts))
        if request.kind == "send":
            number = sum(message[:3] == (rank, *request[1:]) for message in sends)
            return self._announce(state, Message(rank, request.peer, request.tag, number))
        if request.peer == ANY:
            return self._bind_first(state, rank, request.tag)
        channel = (request.peer, rank, request.tag)
        number = sum(message[:3] == channel for message in state.bound)
        return self.bind(state, Message(*channel, number))

    def _announce(self, state: State, message: Message) -> State:
        state = _send(state, message.source, message.target, "SEND", message)
        return self.leave(state, message) if message in state.ready else state

    def _bind_first(self, state: State, rank: int, tag: int) -> State:
        for message in state.announced:
            if (message.target, message.tag) == (rank, tag) and self.is_unbound(state, message):
                return self.bind(state, message)
        return state._replace(waiting=(*state.waiting, (rank, tag)))

    def _take_send(self, state: State, message: Message) -> State:
        state = state._replace(announced=(*state.announced, message))
        receive = (message.target, message.tag)
        if receive not in state.waiting or not self.is_unbound(state, message):
            return state
        waiting = list(state.waiting)
        waiting.remove(receive)
        return self.bind(state._replace(waiting=tuple(waiting)), message)

    def is_unbound(self, state: State, message: Message) -> bool:
        return message not in state.bound

    def bind(self, state: State, message: Message) -> State:
        """Bind a receive to the message."""
        if message in state.bound:
            raise FaultError(f"{message} has two receives")
        state = state._replace(bound=state.bound | {message})
        return _send(state, message.target, message.source, "READY", message)

    def _take_ready(self, state: State, message: Message) -> State:
        state = state._replace(ready=state.ready | {message})
        return self.leave(state, message) if message in self._sends(state) else state

    def leave(self, state: State, message: Message) -> State:
        return _send(state, message.source, message.target, "DATA", message)

    def _take_data(self, state: State, message: Message) -> State:
        if message not in state.bound or message in state.arrived:
            raise FaultError(f"{message} has no place")
        return state._replace(arrived=state.arrived | {message})

    # ---------------------------------------------------------------- the invariants

    def check(self, state: State) -> None:
        if not state.arrived <= state.bound:
            raise FaultError("a message came without a receive")

    def check_end(self, state: State) -> None:
        sends = self._sends(state)
        if state.waiting or set(sends) != state.arrived or state.bound != state.arrived:
            raise FaultError(f"deadlock: of {sends}, only {set(state.arrived)} came")

    def _sends(self, state: State) -> list[Message]:
        """Return all posted sends."""
        sends: list[Message] = []
        for rank, requests in enumerate(self.requests):
            for kind, peer, tag in requests[: state.posted[rank]]:
                if kind == "send":
                    number = sum(message[:3] == (rank, peer, tag) for message in sends)
                    sends.append(Message(rank, peer, tag, number))
        return sends


def _send(state: State, source: int, target: int, kind: str, message: Message) -> State:
    """Queue a frame behind those between the same two ranks."""
    frames = (*state.frames, Frame(source, target, kind, message))
    return state._replace(frames=tuple(sorted(frames, key=lambda frame: frame[:2])))
