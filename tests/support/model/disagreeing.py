# SPDX-License-Identifier: Apache-2.0
"""Calls about which ranks disagree: they end alone, in every order of events.

Each rank posts its calls in order, and numbers them. A call says what is called (all that ranks
compare), and its root, if it has one. All ranks are partners in a call. Only in a call with a root
in a large group, the root is everybody's only partner.

    post      a rank reaches call k: it sends READY(k, what) to its partners in this call; if
              it knows already that the ranks disagree about k, the call ends at once instead
    READY     if the receiver called something else as k, its call k ends with an error, also
              if the sender is no partner; if its call k has ended, it sends MISMATCH back
    complete  all partners are ready, and, in a large group, the root has sent GO: the call
              succeeds; a root then sends GO to all others, with its data or without
    GO        the receiver may complete its call k
    MISMATCH  the call k of the receiver ends with an error, posted or not

A rank whose call k ends with an error sends MISMATCH(k) to its partners, and to every rank whose
READY(k) it has.

Invariants: every call ends on every rank, and on all in the same way: it succeeds where all ranks
call the same, and nowhere else.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from model.explorer import Action, FaultError


class Call(NamedTuple):
    """What a rank calls, and its root, if it has one."""

    what: str
    root: int | None = None


class Frame(NamedTuple):
    """Frame in flight; those between two ranks are in order."""

    source: int
    target: int
    kind: str  # READY, GO, MISMATCH
    number: int


class State(NamedTuple):
    """State of all ranks and of the network."""

    posted: tuple[int, ...]  # number of posted calls, by rank
    frames: tuple[Frame, ...]
    ready: frozenset[tuple[int, int, int]]  # number, rank, rank that has its READY
    ended: frozenset[tuple[int, int, bool]]  # number, rank, whether it succeeded
    released: frozenset[tuple[int, int]]  # number, rank that has the root's GO


@dataclass(frozen=True, slots=True)
class Disagreeing:
    """State machine; for each rank, its calls in the order in which it posts them.

    `is_large` says whether the root is the only partner in a call that has one.
    """

    calls: tuple[tuple[Call, ...], ...]
    is_large: bool = False

    def start(self) -> State:
        return State((0,) * len(self.calls), (), frozenset(), frozenset(), frozenset())

    # ------------------------------------------------------------- possible actions

    def actions(self, state: State) -> Iterator[Action]:
        for rank, calls in enumerate(self.calls):
            if state.posted[rank] < len(calls):
                yield Action("post", (rank,))
            for number in range(state.posted[rank]):
                if self._may_complete(state, number, rank):
                    yield Action("complete", (number, rank))
        first = {frame[:2]: frame for frame in reversed(state.frames)}
        for frame in first.values():
            yield Action("deliver", frame)

    def do(self, state: State, action: Action) -> State:
        if action.name == "post":
            return self._post(state, *action.arguments)
        if action.name == "complete":
            return self._complete(state, *action.arguments)
        frame = Frame(*action.arguments)
        frames = list(state.frames)
        frames.remove(frame)
        state = state._replace(frames=tuple(frames))
        return getattr(self, f"_take_{frame.kind.lower()}")(state, frame)

    # -------------------------------------------------------------------- the rules

    def _post(self, state: State, rank: int) -> State:
        number = state.posted[rank]
        counts = (count + (each == rank) for each, count in enumerate(state.posted))
        state = state._replace(posted=tuple(counts))
        if self.is_ended(state, number, rank):
            return state
        for partner in self.partners(number, rank):
            state = _send(state, Frame(rank, partner, "READY", number))
        for other in self.announced(state, number, rank):
            state = self._compare(state, number, rank, other)
        return state

    def _complete(self, state: State, number: int, rank: int) -> State:
        state = state._replace(ended=state.ended | {(number, rank, True)})
        for other in self.partners(number, rank) if self.root(number, rank) == rank else []:
            state = _send(state, Frame(rank, other, "GO", number))
        return state

    def _take_go(self, state: State, frame: Frame) -> State:
        if (frame.number, frame.target, False) in state.ended:
            raise FaultError(f"rank {frame.target} gets GO for call {frame.number}, which failed")
        return state._replace(released=state.released | {(frame.number, frame.target)})

    def _take_ready(self, state: State, frame: Frame) -> State:
        number, rank, other = frame.number, frame.target, frame.source
        state = state._replace(ready=state.ready | {(number, other, rank)})
        return self._compare(state, number, rank, other)

    def _compare(self, state: State, number: int, rank: int, other: int) -> State:
        if self.is_ended(state, number, rank):
            return self.answer(state, number, rank, other)
        if number >= state.posted[rank] or self._agree(number, rank, other):
            return state
        return self._fail(state, number, rank)

    def answer(self, state: State, number: int, rank: int, other: int) -> State:
        """Answer a READY for a call that has ended here."""
        if (number, rank, True) in state.ended and self._agree(number, rank, other):
            return state
        return _send(state, Frame(rank, other, "MISMATCH", number))

    def _take_mismatch(self, state: State, frame: Frame) -> State:
        if self.is_ended(state, frame.number, frame.target):
            return state
        return self._fail(state, frame.number, frame.target)

    def _fail(self, state: State, number: int, rank: int) -> State:
        state = state._replace(ended=state.ended | {(number, rank, False)})
        for other in self.informed(state, number, rank):
            state = _send(state, Frame(rank, other, "MISMATCH", number))
        return state

    def informed(self, state: State, number: int, rank: int) -> list[int]:
        """Return the ranks that learn from this one that the call has ended."""
        others = set(self.announced(state, number, rank))
        if number < state.posted[rank]:
            others.update(self.partners(number, rank))
        return sorted(others)

    # ---------------------------------------------------------------- the invariants

    def check(self, state: State) -> None:
        for number, rank, succeeded in state.ended:
            if not succeeded and self._all_agree(number):
                raise FaultError(f"call {number} fails on rank {rank}, though all agree")
            if succeeded and not self._all_agree(number):
                raise FaultError(f"call {number} succeeds on rank {rank}, though ranks disagree")

    def check_end(self, state: State) -> None:
        for rank, calls in enumerate(self.calls):
            for number in range(len(calls)):
                if not self.is_ended(state, number, rank):
                    raise FaultError(f"call {number} never ends on rank {rank}")

    # ------------------------------------------------------------------------ facts

    def root(self, number: int, rank: int) -> int | None:
        """Return the rank that knows for all that they agree, as this one believes."""
        return self.calls[rank][number].root if self.is_large else None

    def partners(self, number: int, rank: int) -> list[int]:
        """Return the ranks with which this one exchanges READY, as it believes."""
        root = self.root(number, rank)
        others = [other for other in range(len(self.calls)) if other != rank]
        return others if root in (None, rank) else [root]

    def announced(self, state: State, number: int, rank: int) -> list[int]:
        """Return the ranks whose READY this one has."""
        return sorted(who for what, who, at in state.ready if (what, at) == (number, rank))

    def is_ended(self, state: State, number: int, rank: int) -> bool:
        return not state.ended.isdisjoint({(number, rank, True), (number, rank, False)})

    def _may_complete(self, state: State, number: int, rank: int) -> bool:
        waits_for_go = self.root(number, rank) not in (None, rank)
        if self.is_ended(state, number, rank) or (
            waits_for_go and (number, rank) not in state.released
        ):
            return False
        return all(
            (number, other, rank) in state.ready and self._agree(number, rank, other)
            for other in self.partners(number, rank)
        )

    def _agree(self, number: int, rank: int, other: int) -> bool:
        return self.calls[rank][number] == self.calls[other][number]

    def _all_agree(self, number: int) -> bool:
        return len({calls[number] for calls in self.calls}) == 1


def _send(state: State, frame: Frame) -> State:
    """Queue a frame behind those between the same two ranks."""
    frames = sorted((*state.frames, frame), key=lambda each: each[:2])
    return state._replace(frames=tuple(frames))
