# SPDX-License-Identifier: Apache-2.0
"""Flow of the contributions to a sum, which always completes within bounded memory.

All members number operations in the same way. Each owner sums one shard, in
pieces. It has W slots for every sender; piece p goes to slot p mod W.

    post    a rank reaches operation k: it sends READY(k) to every partner
    READY   lets its receiver send pieces 0 to W - 1
    DATA    a piece, on its way into its slot
    sum     all contributions to a piece have arrived: the owner adds them, which
            empties their slots, and sends the sum
    GRANT   for piece p: slot p mod W is empty again, so send the next piece for it
    SUM     goes straight into the output and needs no slot

Invariants: the protocol always completes; a slot is empty when a piece arrives; no frame
arrives at a rank without memory for it; and every credit, the right to
fill one slot once, is in one place at any time.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from typing import NamedTuple

from model.explorer import Action, FaultError


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """Sum operation; its number is its index in the machine's list."""

    members: tuple[int, ...]
    owners: tuple[int, ...]  # members with a shard: one to all
    pieces: int = 1  # number of pieces in each shard
    window: int = 1  # W, the number of slots
    # sums go to all (all_reduce), else stay with their owner (reduce_scatter)
    gives_back: bool = True

    @property
    def credits(self) -> int:
        """Number of pieces that an owner has slots for initially, for each sender."""
        return min(self.window, self.pieces)

    def partners(self, rank: int) -> list[int]:
        """Return the ranks with which this rank exchanges frames."""
        is_owner = rank in self.owners
        return [m for m in self.members if m != rank and (is_owner or m in self.owners)]


class Frame(NamedTuple):
    """Frame in flight between two ranks."""

    source: int
    target: int
    kind: str  # READY, DATA, GRANT, SUM
    number: int  # number of the operation
    piece: int = 0


class State(NamedTuple):
    """State of all ranks and the network; sets are sorted, so that equal states compare equal."""

    posted: tuple[int, ...]  # number of posted operations, by rank
    frames: tuple[Frame, ...]  # in flight
    # number of the operation, rank, rank that knows that it is ready
    ready: frozenset[tuple[int, int, int]]
    parked: frozenset[tuple[int, int, int, int]]  # number, owner, sender, piece
    summed: frozenset[tuple[int, int, int]]  # number, owner, piece
    received: frozenset[tuple[int, int, int, int]]  # number, owner, receiver, piece


@dataclass(frozen=True, slots=True, kw_only=True)
class Reducing:
    """State machine. `is_fifo`: one queue connects two ranks; otherwise frames
    overtake each other freely, but never the READY of their operation.
    """

    operations: tuple[Operation, ...]
    orders: tuple[tuple[int, ...], ...]  # operations that each rank posts, in order
    is_fifo: bool = False

    def start(self) -> State:
        nothing: frozenset[tuple[int, ...]] = frozenset()
        return State((0,) * len(self.orders), (), nothing, nothing, nothing, nothing)

    # ------------------------------------------------------------- possible actions

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
        return state.posted[rank] < len(self.orders[rank])  # possible at any time

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
            if (number, other, rank) in state.ready:  # READY came before the post
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
            return state  # READY is stored until the post
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
        """Grant the next piece of this slot, which is empty."""
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

    # ---------------------------------------------------------------- the invariants

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
            # credits that are no longer needed
            + sum((number, owner, piece) in state.summed for piece in last)
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
        """Return whether this rank has every sum that it makes or receives, and so its share."""
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
        """Queue frames behind others of the same two ranks, or in any order without `is_fifo`."""
        queue = (lambda frame: frame[:2]) if self.is_fifo else None
        return state._replace(frames=tuple(sorted((*state.frames, *frames), key=queue)))
