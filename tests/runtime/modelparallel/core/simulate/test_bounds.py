# SPDX-License-Identifier: Apache-2.0
"""What holds for any costs: no step beats its bounds, and which schedules beat GPipe."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pipelines import cost

from smdist.modelparallel.core.cost import Link
from smdist.modelparallel.core.schedule import SCHEDULES, Action, Do, Schedule, make_schedule
from smdist.modelparallel.core.simulate import simulate

SECONDS = st.integers(0, 50)
STAGES = st.lists(st.builds(cost, SECONDS, SECONDS, SECONDS), min_size=1, max_size=6)
COUNTS = st.integers(1, 12)


def step_seconds(name, stages, m, link=lambda _rank, _other: Link()):
    schedule = make_schedule(name, num_ranks=len(stages), num_microbatches=m)
    return simulate(schedule, stages, link=link).step_seconds


@settings(max_examples=150, deadline=None)
@given(st.sampled_from(["simple", "1f1b", "interleaved", "zero_bubble"]), STAGES, COUNTS, SECONDS)
def test_no_step_beats_the_way_to_a_stage_its_work_and_the_way_back(name, stages, m, latency):
    """Weight gradients that are computed apart may come after the last one has gone back."""
    is_split = SCHEDULES[name].splits_backward
    there = back = 0
    bounds = []
    for stage in stages:
        gradient = stage.input_gradient_seconds if is_split else stage.backward_seconds
        bounds += [
            there + m * stage.seconds,
            there + m * (stage.forward_seconds + gradient) + back,
        ]
        there += stage.forward_seconds + latency
        back += gradient + latency

    assert max(bounds) <= step_seconds(
        name, stages, m, lambda _rank, _other: Link(latency_seconds=latency)
    )


@settings(max_examples=200, deadline=None)
@given(STAGES, COUNTS)
def test_1f1b_never_takes_longer_than_gpipe_however_unequal_the_stages(stages, m):
    assert step_seconds("1f1b", stages, m) <= step_seconds("simple", stages, m)


@settings(max_examples=150, deadline=None)
@given(
    st.sampled_from(sorted(set(SCHEDULES) - {"interleaved"})),
    st.integers(2, 6),
    st.integers(0, 12),
    st.tuples(SECONDS, SECONDS, SECONDS),
)
def test_no_schedule_takes_longer_than_gpipe_where_stages_are_equal(name, p, more, seconds):
    kind = SCHEDULES[name]
    v = kind.least_virtual_stages
    m = p * max(2, kind.least_microbatches_per_rank) + more
    schedule = make_schedule(name, num_ranks=p, num_microbatches=m, virtual_stages=v)
    stages = [cost(*seconds)] * (p * v)

    assert simulate(schedule, stages).step_seconds <= step_seconds(
        "simple", [cost(*(v * part for part in seconds))] * p, m
    )


@pytest.mark.parametrize(
    ("name", "stages", "m"),
    [
        ("interleaved", [(5, 5, 2.5), (4, 6, 2), (0, 0, 0), (0, 0, 0)], 9),
        ("zero_bubble", [(1, 0, 0), (1, 0, 1), (1, 1, 0)], 14),
    ],
)
def test_with_unequal_stages_a_fixed_order_can_lose_to_gpipe(name, stages, m):
    """So a planner has to simulate what it chooses from."""
    stages = [cost(*stage) for stage in stages]

    assert step_seconds("simple", stages, m) < step_seconds(name, stages, m)


def backward_first(p, m, active, latency):
    """Whatever can start first does, a backward before a forward: orders for F = 1, B = 2."""
    free, orders, ends = [0.0] * p, [[] for _ in range(p)], {}
    begun = {Do.F: [0] * p, Do.B: [0] * p}

    def earliest(rank, do, source):
        told = ends.get((do, source, begun[do][rank]))
        return None if told is None else max(free[rank], told + latency * (source != rank))

    def choices():
        for rank in range(p):
            forward, backward = begun[Do.F][rank], begun[Do.B][rank]
            if forward < m and forward - backward < active:
                start = free[0] if rank == 0 else earliest(rank, Do.F, rank - 1)
                yield start, 1, rank, Do.F
            if backward < forward:
                last = (Do.F, p - 1, backward)
                start = (
                    max(free[rank], ends[last]) if rank == p - 1 else earliest(rank, Do.B, rank + 1)
                )
                yield start, 0, rank, Do.B

    while any(count < m for count in begun[Do.B]):
        start, _, rank, do = min(choice for choice in choices() if choice[0] is not None)
        number = begun[do][rank]
        free[rank] = ends[do, rank, number] = start + (1 if do is Do.F else 2)
        orders[rank].append(Action(do, rank, number))
        begun[do][rank] += 1
    return max(free), Schedule(
        name="backward first",
        rank_of=tuple(range(p)),
        num_microbatches=m,
        orders=tuple(map(tuple, orders)),
    )


@pytest.mark.parametrize(
    ("latency", "tight", "two_more"), [(0, 57, 57), (0.1, 59.8, 57.6), (0.5, 71, 62), (1, 85, 67)]
)
def test_two_more_microbatches_in_flight_hide_the_latency_of_messages(latency, tight, two_more):
    """Four ranks, 16 microbatches: 1F1B waits for every hop; who has six in flight does not."""
    seconds, schedule = backward_first(4, 16, 6, latency)
    timeline = simulate(
        schedule, [cost()] * 4, link=lambda _rank, _other: Link(latency_seconds=latency)
    )

    assert tight == pytest.approx(
        step_seconds("1f1b", [cost()] * 4, 16, lambda _r, _o: Link(latency_seconds=latency))
    )
    assert two_more == pytest.approx(seconds) == pytest.approx(timeline.step_seconds)
