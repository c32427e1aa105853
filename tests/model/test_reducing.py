# SPDX-License-Identifier: Apache-2.0
"""Sums end, overwrite nothing and park little, in every order in which frames may come.

Riders are not modelled, nor lanes, but for frames that overtake each other.
"""

import pytest
from model.explorer import FaultError, explore
from model.reducing import Operation, Reducing


def machine(
    size, *, kind=Reducing, owners=None, pieces=1, window=1, gives_back=True, posts=1, fifo=False
):
    """Ranks that all post the same operations in the same order."""
    ranks = tuple(range(size))
    operation = Operation(
        members=ranks,
        owners=ranks[:owners],
        pieces=pieces,
        window=window,
        gives_back=gives_back,
    )
    numbers = tuple(range(posts))
    return kind(operations=(operation,) * posts, orders=(numbers,) * size, is_fifo=fifo)


SMALL = [
    {"size": 2, "pieces": 3, "window": 1},
    {"size": 2, "pieces": 3, "window": 2},
    {"size": 2, "pieces": 2, "window": 3},
    {"size": 2, "posts": 2},
    {"size": 3},
    {"size": 3, "owners": 1, "pieces": 3},
    {"size": 3, "owners": 1, "pieces": 3, "window": 2, "gives_back": False},
    {"size": 3, "owners": 2, "pieces": 2},
    {"size": 4, "owners": 1, "pieces": 2},
]


@pytest.mark.parametrize("options", SMALL, ids=str)
def test_every_order_in_queues(options):
    """As it is: one queue from each rank to each other."""
    explore(machine(**options, fifo=True))


@pytest.mark.parametrize("options", SMALL, ids=str)
def test_every_order_where_frames_overtake(options):
    """As it may become, with several connections per pair: only READY comes before the rest."""
    explore(machine(**options))


@pytest.mark.parametrize(
    "options",
    [
        {"size": 2, "posts": 2, "pieces": 2},
        {"size": 2, "posts": 3},
        {"size": 3, "pieces": 2},
        {"size": 3, "owners": 1, "posts": 2, "pieces": 3, "window": 2},
        {"size": 4},
        {"size": 4, "owners": 2, "pieces": 2},
        {"size": 4, "owners": 1, "pieces": 4, "window": 2},
    ],
    ids=str,
)
def test_every_order_that_makes_a_difference(options):
    """More ranks, pieces and operations; which frames may come in any order is checked above."""
    explore(machine(**options), skip_orders=True)


def crossing(kind):
    """Two groups of two ranks, whose operations the ranks post in different orders."""
    operation = Operation(members=(0, 1), owners=(0, 1))
    return kind(operations=(operation,) * 2, orders=((0, 1), (1, 0)))


def test_groups_may_be_used_in_different_orders():
    """Every operation has slots of its own: none waits for another."""
    explore(crossing(Reducing))


# ------------------------------------------------------- protocols with a fault in them


class GrantOnReceipt(Reducing):
    """The slot is granted again when its piece has come, not when it was summed."""

    def _take_data(self, state, frame):
        state = super()._take_data(state, frame)
        return super().grant_next(state, frame.number, frame.target, frame.source, frame.piece)

    def grant_next(self, state, number, owner, sender, piece):
        return state


class NoGrant(Reducing):
    """The slot is empty, and nobody says so."""

    def grant_next(self, state, number, owner, sender, piece):
        return state


class DataUnasked(Reducing):
    """The first pieces leave when their sender comes, whether or not the owner has."""

    def _post(self, state, rank):
        number = self.orders[rank][state.posted[rank]]
        state = super()._post(state, rank)
        for owner in self.operations[number].partners(rank):
            state = self._send_first(state, number, rank, owner)
        return state

    def _take_ready(self, state, frame):
        return state._replace(ready=state.ready | {(frame.number, frame.source, frame.target)})


class CreditPerOperation(Reducing):
    """A rank begins an operation when its last is complete."""

    def may_post(self, state, rank):
        begun = self.orders[rank][: state.posted[rank]]
        return super().may_post(state, rank) and all(
            self.is_done(state, rank, number) for number in begun
        )


MUTANTS = [(GrantOnReceipt, "overwrites"), (NoGrant, "deadlock"), (DataUnasked, "has no place")]


@pytest.mark.parametrize(("mutant", "harm"), MUTANTS)
@pytest.mark.parametrize("fifo", [True, False])
def test_a_fault_does_the_harm_that_it_should(mutant, harm, fifo, monkeypatch):
    """Nobody keeps the books, until something breaks; the story says how."""
    monkeypatch.setattr(mutant, "check", lambda self, state: None)

    with pytest.raises(FaultError, match=f"{harm}[^\n]*, after\n  post"):
        explore(machine(3, kind=mutant, owners=1, pieces=2, fifo=fifo))


@pytest.mark.parametrize(("mutant", "count"), [(GrantOnReceipt, 2), (NoGrant, 0)])
def test_the_books_show_a_fault_at_once(mutant, count):
    """A credit too many, a credit lost."""
    with pytest.raises(FaultError, match=f"{count} credits from 0 to"):
        explore(machine(3, kind=mutant, owners=1, pieces=2))


def test_credits_for_whole_operations_would_deadlock():
    """Why they are for pieces, and each operation has its own."""
    with pytest.raises(FaultError, match="deadlock"):
        explore(crossing(CreditPerOperation))
