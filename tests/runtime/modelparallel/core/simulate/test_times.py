# SPDX-License-Identifier: Apache-2.0
"""When actions start, by hand: few enough to follow with a finger."""

import pytest
from pipelines import by_hand, cost, edge

from smdist.modelparallel.core.cost import Link
from smdist.modelparallel.core.schedule import make_schedule
from smdist.modelparallel.core.simulate import simulate


def slow(_rank: int, _other: int) -> Link:
    return Link(latency_seconds=10, bytes_per_second=1)


def times(timeline):
    return {
        f"{event.action}": (event.start, event.end)
        for event in sorted(timeline.events(), key=lambda event: event.start)
    }


def test_an_action_starts_when_its_rank_is_free_and_what_it_reads_is_there():
    schedule = by_hand("0F0 0F1 0B0 0B1", "1F0 1B0 1F1 1B1")
    timeline = simulate(schedule, [cost(2), cost(3)])
    expected = {
        "0F0": (0, 2),
        "0F1": (2, 4),
        "1F0": (2, 5),
        "1B0": (5, 7),
        "0B0": (7, 9),
        "1F1": (7, 10),
        "1B1": (10, 12),
        "0B1": (12, 14),
    }

    assert expected == times(timeline)
    assert timeline.step_seconds == timeline.pipeline_seconds == 14
    assert (8, 10) == timeline.busy_seconds
    assert (6, 4) == timeline.idle_seconds
    assert 10 / 28 == timeline.bubble_fraction


def test_the_split_backward_sends_its_gradient_before_it_computes_that_of_the_weights():
    schedule = by_hand("0F0 0I0 0W0", "1F0 1I0 1W0")
    timeline = simulate(schedule, [cost(1, 2, 4), cost(1, 2, 4)])

    assert {"1I0": (2, 4), "1W0": (4, 8), "0I0": (4, 6), "0W0": (6, 10)}.items() <= times(
        timeline
    ).items()


def test_a_rank_computes_on_while_its_message_travels():
    schedule = by_hand("0F0 0F1", "1F0 1F1")
    timeline = simulate(schedule, [cost(1), cost(1)], link=slow)

    assert {"0F0": (0, 1), "0F1": (1, 2), "1F0": (11, 12), "1F1": (12, 13)} == times(timeline)


def test_messages_of_one_direction_queue_up_for_their_bytes_and_not_for_their_latency():
    schedule = by_hand("0F0 0F1 0F2", "1F0 1F1 1F2")
    timeline = simulate(schedule, [cost(1), cost(1)], edges=[edge(0, 1, 5)], link=slow)

    assert [1 + 5 + 10, 1 + 10 + 10, 1 + 15 + 10] == [
        times(timeline)[name][0] for name in ("1F0", "1F1", "1F2")
    ]


def test_messages_to_and_fro_do_not_meet():
    schedule = by_hand("0F0 0F1 0B0", "1F0 1B0")
    timeline = simulate(schedule, [cost(14), cost(1)], edges=[edge(0, 1, 14)], link=slow)

    assert (38, 39) == times(timeline)["1F0"]  # 0F1 is on the wire from 28 to 42
    assert (41 + 14 + 10, 41 + 14 + 10 + 2) == times(timeline)["0B0"]


def test_values_between_two_stages_travel_together():
    schedule = by_hand("0F0", "1F0")
    timeline = simulate(schedule, [cost(), cost()], edges=[edge(0, 1, 3), edge(0, 1, 4)], link=slow)

    assert 1 + 3 + 4 + 10 == times(timeline)["1F0"][0]


def test_a_skip_edge_goes_straight_to_each_of_its_readers():
    asked = []

    def link(rank, other):
        asked.append((rank, other))
        return Link(latency_seconds=100 if (rank, other) == (0, 2) else 0)

    schedule = by_hand("0F0 0B0", "1F0 1B0", "2F0 2B0")
    edges = [edge(0, 1), edge(0, 2), edge(1, 2)]
    timeline = simulate(schedule, [cost()] * 3, edges=edges, link=link)

    assert (101, 102) == times(timeline)["2F0"]
    assert {(0, 1), (0, 2), (1, 2), (1, 0), (2, 0), (2, 1)} == set(asked)


def test_a_backward_waits_for_the_gradients_of_all_its_readers():
    schedule = by_hand("0F0 0B0", "1F0 1B0", "2F0 2B0")
    late = [edge(0, 1), edge(0, 2)]  # 1 and 2 stand side by side
    timeline = simulate(schedule, [cost(), cost(), cost(7)], edges=late)

    assert {"1B0": (2, 4), "2B0": (8, 10), "0B0": (10, 12)}.items() <= times(timeline).items()


def test_no_gradient_flows_back_along_an_edge_that_has_none():
    schedule = by_hand("0F0 0B0", "1F0 1B0")
    timeline = simulate(schedule, [cost(), cost(50)], edges=[edge(0, 1, has_gradient=False)])

    assert (1, 3) == times(timeline)["0B0"]


def test_two_stages_of_one_rank_exchange_at_no_cost():
    schedule = by_hand("0F0 1F0 1B0 0B0", rank_of=(0, 0))
    timeline = simulate(schedule, [cost(), cost()], edges=[edge(0, 1, 1000)], link=slow)

    assert 6 == timeline.step_seconds
    assert 0 == timeline.bubble_fraction


def test_a_wait_is_exposed_for_as_long_as_the_message_was_under_way():
    schedule = by_hand("0F0", "1F0")
    timeline = simulate(schedule, [cost(7), cost(1)], link=slow)

    assert (0, 10) == timeline.exposed_seconds
    assert (11, 17) == timeline.idle_seconds


def test_travel_behind_computation_is_not_exposed():
    schedule = by_hand("0F0 0F1 0F2", "1F0 1F1 1F2")
    timeline = simulate(schedule, [cost(1), cost(20)], link=slow)

    assert (0, 10) == timeline.exposed_seconds  # the first one alone


def test_the_last_action_of_a_rank_starts_its_reduction():
    schedule = by_hand("0F0 0B0", "1F0 1B0")
    timeline = simulate(schedule, [cost(), cost()], reduce_seconds=(5, 1))

    assert [(0, 6, 11), (1, 4, 5)] == [(r.rank, r.start, r.end) for r in timeline.reductions]
    assert 6 == timeline.pipeline_seconds
    assert 11 == timeline.step_seconds
    assert (5, 1) == timeline.exposed_seconds
    assert 6 / 12 == timeline.bubble_fraction


def test_a_long_reduction_of_the_last_rank_outlasts_the_pipeline():
    schedule = by_hand("0F0 0B0", "1F0 1B0")
    timeline = simulate(schedule, [cost(), cost()], reduce_seconds=(0, 9))

    assert 4 + 9 == timeline.step_seconds


def test_a_stage_reduces_while_its_rank_computes_on_for_another():
    schedule = by_hand("0F0 1F0 1B0 0B0", rank_of=(0, 0))
    early = simulate(schedule, [cost(), cost()], stage_reduce_seconds=(3, 1))
    late = simulate(schedule, [cost(), cost()], reduce_seconds=(4,))

    assert [(1, 4, 5), (0, 6, 9)] == [(r.stage, r.start, r.end) for r in early.reductions]
    assert (9, 10) == (early.step_seconds, late.step_seconds)
    assert ((3,), (4,)) == (early.exposed_seconds, late.exposed_seconds)


def test_reductions_of_one_rank_queue_up():
    schedule = by_hand("0F0 1F0 1I0 1W0 0I0 0W0", rank_of=(0, 0))
    timeline = simulate(schedule, [cost(), cost()], stage_reduce_seconds=(3, 10))

    assert [(1, 4, 14), (0, 6 + 8, 17)] == [(r.stage, r.start, r.end) for r in timeline.reductions]
    assert (11,) == timeline.exposed_seconds


@pytest.mark.timeout(60)
def test_a_pipeline_of_1024_ranks_takes_seconds():
    """A quarter of a million actions; what is not linear in them takes minutes."""
    schedule = make_schedule("1f1b", num_ranks=1024, num_microbatches=128)
    timeline = simulate(
        schedule, [cost(saved=1)] * 1024, edges=[edge(s, s + 1, 1) for s in range(1023)]
    )

    assert 3 * (1024 + 128 - 1) == timeline.step_seconds
