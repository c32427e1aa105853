# SPDX-License-Identifier: Apache-2.0
"""Every send finds its one receive, in every order in which frames may come."""

import pytest
from model.explorer import FaultError, explore
from model.point_to_point import ANY, PointToPoint, Request


def send(to, tag=0):
    return Request("send", to, tag)


def receive(source, tag=0):
    return Request("receive", source, tag)


PROGRAMS = {
    "one message": ([send(1)], [receive(0)]),
    "three messages": ([send(1)] * 3, [receive(0)] * 3),
    "to each other": ([send(1), receive(1)] * 2, [send(0), receive(0)] * 2),
    "tags in another order": ([send(1, 5), send(1, 6)], [receive(0, 6), receive(0, 5)]),
    "a ring": tuple([send((r + 1) % 4), receive((r - 1) % 4)] for r in range(4)),
    "a ring that receives first": tuple(
        [receive((r - 1) % 3), send((r + 1) % 3)] for r in range(3)
    ),
    "any of three": ([receive(ANY)] * 3, [send(0)], [send(0)], [send(0)]),
    "any of two, twice": ([receive(ANY)] * 4, [send(0)] * 2, [send(0)] * 2),
    "any and one": ([receive(ANY, 1), receive(1, 2)], [send(0, 1), send(0, 2)]),
    "one, then any": ([receive(1), receive(ANY)], [send(0)], [send(0)]),
}


@pytest.mark.parametrize("program", PROGRAMS)
def test_every_order(program):
    """It ends, and nothing comes without a place."""
    explore(PointToPoint(PROGRAMS[program]))


class Unasked(PointToPoint):
    """The message leaves with its announcement."""

    def _announce(self, state, message):
        return self.leave(super()._announce(state, message), message)


class BindsAgain(PointToPoint):
    """A receive from any source takes what another is bound to."""

    def is_unbound(self, state, message):
        return True


@pytest.mark.parametrize(
    ("mutant", "harm"), [(Unasked, "has no place"), (BindsAgain, "has two receives")]
)
def test_a_fault_is_found(mutant, harm):
    """So the check can fail."""
    with pytest.raises(FaultError, match=harm):
        explore(mutant(PROGRAMS["any of two, twice"]))


def test_a_receive_without_a_send_is_found():
    """One message for two receives."""
    with pytest.raises(FaultError, match="deadlock"):
        explore(PointToPoint(([send(1)], [receive(0), receive(0)])))
