# SPDX-License-Identifier: Apache-2.0
"""What cannot be simulated is refused by name, and nothing waits for ever."""

import pytest
from pipelines import by_hand, cost, edge

from sagemaker_dist.errors import OptionError, OptionErrors
from smdist.modelparallel.core.simulate import simulate
from smdist.modelparallel.core.simulate.deadlock import DeadlockError


def test_a_circle_of_waiting_names_every_rank_and_action_in_it():
    schedule = by_hand("0F0 0B0 0F1 0B1", "1F0 1F1 1B0 1B1")
    with pytest.raises(OptionError) as error:
        simulate(schedule, [cost(), cost()])

    assert (
        "schedule 'by hand' has a deadlock: rank 0 waits at 0B0 for 1B0; rank 1 waits at 1F1 for "
        "0F1. Place every action after the actions whose results it needs."
    ) == str(error.value)
    assert "deadlock" == error.value.kind
    assert ((0, "0B0", "1B0"), (1, "1F1", "0F1")) == error.value.waits
    assert ("orders", 0, "0B0") == error.value.about


def test_a_rank_that_waits_for_itself_is_named():
    with pytest.raises(OptionError) as error:
        simulate(by_hand("0B0 0F0"), [cost()])

    assert ("deadlock", ("orders", 0, "0B0")) == (error.value.kind, error.value.about)


def test_what_a_stage_waits_for_over_a_skip_edge_is_named():
    schedule = by_hand("0F1 0F0", "1F1 1F0", "2F0 2F1")
    edges = [edge(0, 2), edge(1, 2)]
    timeline = simulate(schedule, [cost()] * 3, edges=edges)
    schedule = by_hand("0F0 0B0", "1F0 1B0", "2B0 2F0")

    assert 4 == timeline.step_seconds
    with pytest.raises(DeadlockError) as error:
        simulate(schedule, [cost()] * 3, edges=edges)

    assert ((0, "0B0", "2B0"), (2, "2B0", "2F0")) == error.value.waits


def test_an_action_that_nobody_does_is_named():
    with pytest.raises(DeadlockError) as error:
        simulate(by_hand("0F1", "1F0"), [cost(), cost()])

    assert ("missing_action", ("orders", 1, "1F0")) == (error.value.kind, error.value.about)
    assert ((1, "1F0", "0F0"),) == error.value.waits


def test_a_weight_gradient_waits_for_the_input_gradient():
    with pytest.raises(OptionError) as error:
        simulate(by_hand("0F0 0W0 0I0"), [cost()])

    assert ("deadlock", ("orders", 0, "0W0")) == (error.value.kind, error.value.about)


def test_the_spelling_of_the_other_ranks_is_used_for_what_is_waited_for():
    with pytest.raises(DeadlockError) as error:
        simulate(by_hand("0F0 0I0 0W0 0F1", "1F0 1F1 1B0"), [cost(), cost()])

    assert ((0, "0I0", "1B0"), (1, "1F1", "0F1")) == error.value.waits


@pytest.mark.parametrize(("order", "again"), [("0F0 0B0 0F0", "0F0"), ("0F0 0B0 0I0", "0I0")])
def test_an_action_twice_is_refused(order, again):
    with pytest.raises(OptionError) as error:
        simulate(by_hand(order), [cost()])

    assert ("repeated_action", ("orders", 0, again)) == (error.value.kind, error.value.about)


def test_all_faults_come_at_once():
    schedule = by_hand("0F0 2B0", "1F0 1B0")
    with pytest.raises(OptionErrors) as error:
        simulate(
            schedule,
            [cost()],
            edges=[edge(1, 0), edge(1, 1), edge(0, 2)],
            static_bytes=[1],
            reduce_seconds=[1, 2, 3],
            stage_reduce_seconds=[1],
        )

    assert [
        ("static_bytes",),
        ("reduce_seconds",),
        ("stages",),
        ("stage_reduce_seconds",),
        *3 * [("edges",)],
        ("orders", 0, "2B0"),
        ("stage_reduce_seconds",),
    ] == [fault.about for fault in error.value.faults]


def test_a_microbatch_beyond_the_last_is_refused():
    schedule = by_hand("0F0 0F1 0B0 0B1")
    short = type(schedule)(name="x", rank_of=(0,), num_microbatches=1, orders=schedule.orders)
    with pytest.raises(OptionError) as error:
        simulate(short, [cost()])

    assert ("unknown_action", ("orders", 0, "0F1")) == (error.value.kind, error.value.about)


def test_gradients_are_reduced_by_rank_or_by_stage_and_not_both():
    with pytest.raises(OptionError) as error:
        simulate(by_hand("0F0"), [cost()], reduce_seconds=[1], stage_reduce_seconds=[1])

    assert ("stage_reduce_seconds",) == error.value.about
