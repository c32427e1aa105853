# SPDX-License-Identifier: Apache-2.0
"""A disagreement ends one call on all ranks, in every order in which frames may come."""

import pytest
from model.disagreeing import Call, Disagreeing
from model.explorer import FaultError, explore

SUM, LONGER, BARRIER = Call("sum"), Call("longer sum"), Call("barrier")
FROM_0, FROM_1, TO_0 = Call("broadcast", 0), Call("broadcast", 1), Call("gather", 0)

# Calls do not depend on each other, so one call of three ranks shows all that can happen to it.
PROGRAMS = {
    "two ranks": ((SUM, SUM), (LONGER, SUM)),
    "one call too few": ((SUM, LONGER, SUM), (LONGER, SUM, SUM)),
    "all agree": ((BARRIER,), (BARRIER,), (BARRIER,)),
    "all agree about a root": ((FROM_0,), (FROM_0,), (FROM_0,)),
    "one of three": ((SUM,), (SUM,), (LONGER,)),
    "each another": ((SUM,), (LONGER,), (BARRIER,)),
    "roots": ((FROM_0,), (FROM_1,), (FROM_0,)),
    "a root that knows of another one": ((FROM_1,), (FROM_0,), (FROM_0,)),
    "roots of two": ((FROM_0, SUM), (FROM_1, SUM)),
    "a sum beside a broadcast": ((SUM,), (FROM_1,), (FROM_1,)),
    "a sum and a gather": ((TO_0,), (TO_0,), (SUM,)),
    "a gather and a broadcast to the side": ((TO_0,), (TO_0,), (FROM_1,)),
}


@pytest.mark.parametrize("is_large", [False, True], ids=["small", "large"])
@pytest.mark.parametrize("program", PROGRAMS)
def test_every_order(program, is_large):
    """Every call ends, with an error on all ranks or on none, and the next one works."""
    explore(Disagreeing(PROGRAMS[program], is_large))


class TellsNobody(Disagreeing):
    """A rank that learns of a disagreement keeps it to itself."""

    def informed(self, state, number, rank):
        return []


class Silent(Disagreeing):
    """A rank whose call has ended does not answer."""

    def answer(self, state, number, rank, other):
        return state


class Hasty(Disagreeing):
    """A root sends its data at once."""

    def _post(self, state, rank):
        number = state.posted[rank]
        state = super()._post(state, rank)
        is_root = self.root(number, rank) == rank and not self.is_ended(state, number, rank)
        for other in self.partners(number, rank) if is_root else []:
            state = state._replace(released=state.released | {(number, other)})
        return state


@pytest.mark.parametrize(
    ("mutant", "program"),
    [
        (TellsNobody, "a gather and a broadcast to the side"),
        (Silent, "a root that knows of another one"),
        (Hasty, "a sum beside a broadcast"),
    ],
)
def test_a_fault_in_the_protocol_is_found(mutant, program):
    """So the check can fail."""
    with pytest.raises(FaultError):
        explore(mutant(PROGRAMS[program], is_large=True))
