# SPDX-License-Identifier: Apache-2.0
"""How the contributions to a sum flow, and why they always do and never too many.

Operations are numbered by all members alike. Each owner sums one shard, in
pieces. It has W slots for every sender; piece p goes to slot p mod W.

    post    a rank comes to operation k: it tells every partner READY(k)
    READY   lets its receiver send pieces 0 to W - 1
    DATA    a piece, on its way into its slot
    sum     all contributions to a piece are there: the owner adds them, which
            empties their slots, and sends the sum
    GRANT   for piece p: slot p mod W is empty again, so send it
    SUM     goes straight into the output and needs no slot

The promises: everything ends; a slot is empty when a piece comes in; nothing
comes to a rank that has no place for it; and every credit, which is the right to
fill one slot once, is in one place at any time.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from typing import NamedTuple

from model.explorer import Action, FaultError


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """A sum; its number is its place in the machine's list."""

    members: tuple[int, ...]
    owners: tuple[int, ...]  # those with a shard: one to all members
    pieces: int = 1  # of each shard
    window: int = 1  # W
    gives_back: bool = True  # the sums go to all: all_reduce; else they stay: reduce_scatter

    @property
    def credits(self) -> int:
        """Pieces that an owner has a place for from the beginning, for each sender."""
        return min(self.window, self.pieces)

    def partners(self, rank: int) -> list[int]:
        """With whom this rank exchanges frames."""
        is_owner = rank in self.owners
        return [m for m in self.members if m != rank and (is_owner or m in self.owners)]


class Frame(NamedTuple):
    """What is on its way between two ranks."""

    source: int
    target: int
    kind: str  # READY, DATA, GRANT, SUM
    number: int  # of the operation
    piece: int = 0


class State(NamedTuple):
    """All ranks and the network; sets are sorted, so that equal states are equal values."""

    posted: tuple[int, ...]  # by rank: how many operations of its list
    frames: tuple[Frame, ...]  # on their way
    ready: frozenset[tuple[int, int, int]]  # number, rank, and which rank knows that it is ready
    parked: frozenset[tuple[int, int, int, int]]  # number, owner, sender, piece
    summed: frozenset[tuple[int, int, int]]  # number, owner, piece
    received: frozenset[tuple[int, int, int, int]]  # number, owner, receiver, piece


@dataclass(frozen=True, slots=True, kw_only=True)
class Reducing:
    """The machine. `is_fifo`: two ranks are connected by one queue; else frames
    overtake each other at will, but never the READY of their operation."""

    operations: tuple[Operation, ...]
    orders: tuple[tuple[int, ...], ...]  # by rank: the operations it posts, in order
    is_fifo: bool = False

    def start(self) -> State:
        nothing: frozenset[tuple[int, ...]] = frozenset()
        return State((0,) * len(self.orders), (), nothing, nothing, nothing, nothing)

    # ------------------------------------------------------------- what can happen

    def actions(self, state: State) -> Iterator[Action]:
        for rank in range(len(self.orders)):
            if self.may_post(state, rank):
                yield Action("post", (rank,))
        for frame in self._arriving(state):
            yield Action("deliver", frame, not self.is_fifo and frame.kind != "DATA")
        for number, operation in enumerate(self.operations):
            for owner, piece in product(operation.owners, range(operation.pieces)):
                if self._may_sum(state, number, owner, piece):
                    yield Action("sum", (number, owner, piece))

    def do(self, state: State, action: Action) -> State:
        if action.name == "deliver":
            return self._deliver(state, Frame(*action.arguments))
        return getattr(self, f"_{action.name}")(state, *action.arguments)

    def may_post(self, state: State, rank: int) -> bool:
        return state.posted[rank] < len(self.orders[rank])  # at any time: nothing holds it back

    def _may_sum(self, state: State, number: int, owner: int, piece: int) -> bool:
        return (
            self.is_posted(state, owner, number)
            and (number, owner, piece) not in state.summed
            and self.contributions(number, owner, piece) <= state.parked
        )

    def _arriving(self, state: State) -> list[Frame]:
        if self.is_fifo:
            first: dict[tuple[int, int], Frame] = {}
            for frame in state.frames:
                first.setdefault((frame.source, frame.target), frame)
            return list(first.values())
        return [
            frame
            for frame in state.frames
            if frame.kind == "READY" or (frame.number, frame.source, frame.target) in state.ready
        ]

    # -------------------------------------------------------------------- the rules

    def _post(self, state: State, rank: int) -> State:
        number = self.orders[rank][state.posted[rank]]
        counts = (count + (each == rank) for each, count in enumerate(state.posted))
        state = state._replace(posted=tuple(counts))
        partners = self.operations[number].partners(rank)
        state = self._send(state, [Frame(rank, other, "READY", number) for other in partners])
        for other in partners:
            if (number, other, rank) in state.ready:  # it was here first
                state = self._send_first(state, number, rank, other)
        return state

    def _deliver(self, state: State, frame: Frame) -> State:
        frames = list(state.frames)
        frames.remove(frame)
        state = state._replace(frames=tuple(frames))
        is_posted = self.is_posted(state, frame.target, frame.number)
        if frame.kind != "READY" and not is_posted:
            raise FaultError(f"{frame} has no place")
        if is_posted and self.is_done(state, frame.target, frame.number):
            raise FaultError(f"{frame} comes after the end")
        return getattr(self, f"_take_{frame.kind.lower()}")(state, frame)

    def _take_ready(self, state: State, frame: Frame) -> State:
        state = state._replace(ready=state.ready | {(frame.number, frame.source, frame.target)})
        if not self.is_posted(state, frame.target, frame.number):
            return state  # remembered
        return self._send_first(state, frame.number, frame.target, frame.source)

    def _send_first(self, state: State, number: int, sender: int, owner: int) -> State:
        operation = self.operations[number]
        first = range(operation.credits if owner in operation.owners else 0)
        return self._send(state, [Frame(sender, owner, "DATA", number, piece) for piece in first])

    def _take_data(self, state: State, frame: Frame) -> State:
        operation = self.operations[frame.number]
        slot = (frame.number, frame.target, frame.source)
        for piece in range(frame.piece % operation.window, operation.pieces, operation.window):
            if (*slot, piece) in state.parked:
                raise FaultError(f"{frame} overwrites piece {piece}")
        return state._replace(parked=state.parked | {(*slot, frame.piece)})

    def _sum(self, state: State, number: int, owner: int, piece: int) -> State:
        operation = self.operations[number]
        state = state._replace(
            parked=state.parked - self.contributions(number, owner, piece),
            summed=state.summed | {(number, owner, piece)},
        )
        for other in operation.partners(owner):
            state = self.grant_next(state, number, owner, other, piece)
            if operation.gives_back:
                state = self._send(state, [Frame(owner, other, "SUM", number, piece)])
        return state

    def grant_next(self, state: State, number: int, owner: int, sender: int, piece: int) -> State:
        """The slot of this piece is empty: its successor there may come."""
        piece += self.operations[number].window
        if piece >= self.operations[number].pieces:
            return state
        return self._send(state, [Frame(owner, sender, "GRANT", number, piece)])

    def _take_grant(self, state: State, frame: Frame) -> State:
        data = Frame(frame.target, frame.source, "DATA", frame.number, frame.piece)
        return self._send(state, [data])

    def _take_sum(self, state: State, frame: Frame) -> State:
        here = (frame.number, frame.source, frame.target, frame.piece)
        return state._replace(received=state.received | {here})

    # ------------------------------------------------------------------ the promises

    def check(self, state: State) -> None:
        for number, operation in enumerate(self.operations):
            for owner in operation.owners:
                parked = sum(slot[:2] == (number, owner) for slot in state.parked)
                if parked > (len(operation.members) - 1) * operation.window:
                    raise FaultError(f"{parked} pieces are parked on rank {owner}")
                for sender in operation.partners(owner):
                    self._check_credits(state, number, owner, sender)

    def _check_credits(self, state: State, number: int, owner: int, sender: int) -> None:
        operation = self.operations[number]
        knows = (number, owner, sender) in state.ready
        is_begun = knows and self.is_posted(state, sender, number)
        ways = {(sender, owner, "DATA"), (owner, sender, "GRANT")}
        last = range(operation.pieces - operation.credits, operation.pieces)
        found = (
            (0 if is_begun else operation.credits)
            + sum(frame[:3] in ways and frame.number == number for frame in state.frames)
            + sum(slot[:3] == (number, owner, sender) for slot in state.parked)
            + sum((number, owner, piece) in state.summed for piece in last)  # of no more use
        )
        if found != operation.credits:
            raise FaultError(f"{found} credits from {owner} to {sender}")

    def check_end(self, state: State) -> None:
        for rank, order in enumerate(self.orders):
            for number in order:
                if not (self.is_posted(state, rank, number) and self.is_done(state, rank, number)):
                    raise FaultError(f"deadlock: operation {number} never ends on rank {rank}")
        if state.frames or state.parked:
            raise FaultError(f"left over: {state.frames} {set(state.parked)}")

    # ------------------------------------------------------------------------ facts

    def is_posted(self, state: State, rank: int, number: int) -> bool:
        return number in self.orders[rank][: state.posted[rank]]

    def is_done(self, state: State, rank: int, number: int) -> bool:
        """All sums that this rank makes or is given are there; its share is then, too."""
        operation = self.operations[number]
        for owner, piece in product(operation.owners, range(operation.pieces)):
            is_made = (number, owner, piece) in state.summed
            is_given = (number, owner, rank, piece) in state.received
            if not (is_given if operation.gives_back and owner != rank else is_made):
                return False
        return True

    def contributions(
        self, number: int, owner: int, piece: int
    ) -> frozenset[tuple[int, int, int, int]]:
        senders = self.operations[number].partners(owner)
        return frozenset((number, owner, sender, piece) for sender in senders)

    def _send(self, state: State, frames: list[Frame]) -> State:
        """Queued behind what goes the same way; or anywhere, where order means nothing."""
        queue = (lambda frame: frame[:2]) if self.is_fifo else None
        return state._replace(frames=tuple(sorted((*state.frames, *frames), key=queue)))
