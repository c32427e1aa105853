# SPDX-License-Identifier: Apache-2.0
"""Decisions on which hosts go on, without sockets."""

import pytest

from smdist.launch.elastic.membership import (
    FINISHED,
    NO_MAJORITY,
    TOO_FEW,
    Decision,
    Follow,
    Loss,
    Membership,
    ReformRefusal,
    Wait,
)


def lost(host, *, is_certain=True):
    return Loss(host=host, why="it has ended", is_certain=is_certain)


def ready(membership, *hosts):
    for host in hosts:
        membership.set_ready(host, membership.generation, membership.members)


def test_a_host_that_is_not_ready_does_nothing():
    membership = Membership(0, 2, 1)
    membership.lose(lost(1))

    assert membership.next_step() is None


def test_the_leader_waits_for_each_host_that_is_not_lost():
    membership = Membership(0, 4, 1)
    ready(membership, 0, 2)
    membership.lose(lost(1))

    assert Wait((3,)) == membership.next_step()

    ready(membership, 3)

    assert Decision(1, (0, 2, 3)) == membership.next_step()


@pytest.mark.parametrize("first", [0, 1])
def test_the_lowest_host_that_is_left_leads(first):
    membership = Membership(2, 3, 1)
    ready(membership, 2)
    for host in range(first):
        membership.lose(lost(host))

    assert Follow(first) == membership.next_step()


def test_a_host_alone_decides_at_once():
    membership = Membership(1, 2, 1)
    membership.lose(lost(0))
    ready(membership, 1)

    assert Decision(1, (1,)) == membership.next_step()


def test_fewer_hosts_than_the_least_number_do_not_go_on():
    """They need not be ready: no later event can bring a host back."""
    membership = Membership(0, 3, 2)
    ready(membership, 0)
    membership.lose(lost(1))
    membership.lose(lost(2))

    assert ReformRefusal(TOO_FEW, (0,)) == membership.next_step()


@pytest.mark.parametrize(
    ("num_hosts", "silent", "expected"),
    [
        (3, [2], Decision(1, (0, 1))),
        (2, [1], ReformRefusal(NO_MAJORITY, (0,))),
        (4, [2, 3], ReformRefusal(NO_MAJORITY, (0, 1))),
        (5, [3, 4], Decision(1, (0, 1, 2))),
    ],
)
def test_silent_hosts_are_left_out_by_a_majority_alone(num_hosts, silent, expected):
    membership = Membership(0, num_hosts, 1)
    ready(membership, *(host for host in range(num_hosts) if host not in silent))
    for host in silent:
        membership.lose(lost(host, is_certain=False))

    assert expected == membership.next_step()


def test_a_silent_host_that_turns_out_to_have_ended_needs_no_majority():
    membership = Membership(0, 2, 1)
    ready(membership, 0)

    assert membership.lose(lost(1, is_certain=False))
    assert membership.lose(lost(1))
    assert not membership.lose(lost(1))
    assert Decision(1, (0,)) == membership.next_step()


def test_a_host_that_has_finished_cannot_be_waited_for():
    membership = Membership(0, 3, 1)
    ready(membership, 0)
    membership.lose(lost(1))
    membership.finish(2)

    assert ReformRefusal(FINISHED, (2,)) == membership.next_step()


def test_the_majority_is_that_of_the_last_generation():
    membership = Membership(0, 5, 1)
    for host in (3, 4):
        membership.lose(lost(host))
    ready(membership, 0, 1, 2)
    membership.next_step()
    membership.lose(lost(2, is_certain=False))
    ready(membership, 0, 1)

    assert Decision(2, (0, 1)) == membership.next_step()


def test_a_new_leader_counts_on_from_a_decision_that_it_has_not_received():
    """The first leader has sent its decision to host 2 alone, and was lost."""
    membership = Membership(1, 4, 1)
    membership.lose(lost(3))
    membership.lose(lost(0))
    ready(membership, 1)
    membership.set_ready(2, 1, (0, 1, 2))

    assert Decision(2, (1, 2)) == membership.next_step()


def test_an_old_decision_is_not_adopted():
    membership = Membership(1, 3, 1)

    assert membership.adopt(Decision(2, (0, 1)))
    assert not membership.adopt(Decision(1, (0, 1, 2)))
    assert (0, 1) == membership.members


def test_a_generation_is_whole_until_a_member_is_lost():
    membership = Membership(1, 3, 1)
    membership.adopt(Decision(1, (0, 1)))
    membership.lose(lost(2))

    assert membership.is_whole

    membership.lose(lost(0))

    assert not membership.is_whole
