# SPDX-License-Identifier: Apache-2.0
"""What ranks hold, by hand."""

from pipelines import by_hand, cost, edge

from smdist.modelparallel.core.simulate import Peak, simulate


def held(timeline, rank=0):
    return [event.held_bytes for event in timeline.events() if event.rank == rank]


def test_activations_are_held_from_the_forward_to_the_end_of_the_backward():
    timeline = simulate(by_hand("0F0 0F1 0B0 0F2 0B1 0B2"), [cost(saved=10)])

    assert [10, 20, 20, 20, 20, 10] == held(timeline)
    assert (20,) == timeline.peak_bytes


def test_activations_are_held_to_the_end_of_a_backward_that_is_split():
    timeline = simulate(by_hand("0F0 0F1 0I0 0I1 0W0 0F2 0W1 0I2 0W2"), [cost(saved=10)])

    assert [10, 20, 20, 20, 20, 20, 20, 10, 10] == held(timeline)


def test_static_bytes_are_held_all_the_time():
    timeline = simulate(by_hand("0F0 0B0"), [cost(saved=10)], static_bytes=[500])

    assert [510, 510] == held(timeline)


def test_workspace_is_held_during_the_action_alone():
    schedule = by_hand("0F0 1F0 1B0 0B0", rank_of=(0, 0))
    timeline = simulate(schedule, [cost(saved=1, workspace=100), cost(workspace=7)])

    assert [101, 8, 8, 101] == held(timeline)


def test_receives_are_posted_one_action_ahead():
    schedule = by_hand("0F0 0F1 0B0 0B1", "1F0 1F1 1B1 1B0")
    timeline = simulate(schedule, [cost(), cost()], edges=[edge(0, 1, 5), edge(0, 1, 3)])

    assert [0, 8, 16, 8] == held(timeline, 0)  # gradients for B0 and B1
    assert [16, 8, 0, 0] == held(timeline, 1)  # activations for F0 and F1


def test_edges_without_gradient_need_no_buffer_on_the_way_back():
    schedule = by_hand("0F0 0B0", "1F0 1B0")
    edges = [edge(0, 1, 5), edge(0, 1, 3, has_gradient=False)]
    timeline = simulate(schedule, [cost(), cost()], edges=edges)

    assert ((5, 5), (8, 0)) == timeline.held_bytes


def test_a_rank_holds_what_its_stages_hand_each_other_until_it_is_read():
    schedule = by_hand("0F0 0F1 1F0 1F1 1B0 1B1 0B0 0B1", rank_of=(0, 0))
    timeline = simulate(schedule, [cost(), cost()], edges=[edge(0, 1, 5)])

    assert [0, 5, 10, 5, 0, 5, 10, 5] == held(timeline)


def test_the_peak_is_told_by_its_parts():
    schedule = by_hand("0F0 0F1 0B0 0B1", "1F0 1B0 1F1 1B1")
    stages = [cost(saved=10, workspace=1), cost(saved=100, workspace=2)]
    timeline = simulate(schedule, stages, edges=[edge(0, 1, 5)], static_bytes=[1000, 2000])
    expected = Peak(place=2, static_bytes=1000, saved_bytes=20, receive_bytes=10, workspace_bytes=1)

    assert expected == timeline.peaks[0]
    assert 1031 == timeline.peaks[0].total_bytes == timeline.peak_bytes[0]
    assert 2000 + 100 + 5 + 2 == timeline.peak_bytes[1]


def test_a_rank_without_actions_holds_its_weights():
    schedule = by_hand("0F0 0B0")
    idle = type(schedule)(name="x", rank_of=(0,), num_microbatches=1, orders=(*schedule.orders, ()))

    assert (0, 9) == simulate(idle, [cost()], static_bytes=[0, 9]).peak_bytes
