# SPDX-License-Identifier: Apache-2.0
"""Schedules whose time and memory can be written down come out as written.

p ranks, m microbatches, v stages a rank; F, I and W are seconds of a whole rank. Costs are such
that every sum is exact.
"""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pipelines import cost
from schedule_grid import grid

from smdist.modelparallel.core.schedule import make_schedule, peak_in_flight
from smdist.modelparallel.core.simulate import simulate

ONE_STAGE = ("simple", "1f1b", "interleaved")
ROUNDS = ("interleaved_1f1b", "looped_bfs")
GRID = [
    *((name, 1) for name in ONE_STAGE),
    *((name, v) for name in ROUNDS for v in (2, 4)),
    *(("zero_bubble", v) for v in (1, 2, 4)),
    ("zero_bubble_v", 2),
    ("dualpipe_v", 2),
]


def step(name, p, m, v=1, *, f=1.0, i=1.0, w=1.0):
    """A step of a pipeline with equal stages, each of which saves one byte."""
    schedule = make_schedule(name, num_ranks=p, num_microbatches=m, virtual_stages=v)
    return simulate(schedule, [cost(f / v, i / v, w / v, saved=1)] * (p * v))


def bubble_seconds(name, p, m, v, *, f=1.0, i=1.0, w=1.0):
    """What a step takes beyond m (F + I + W)."""
    if name == "zero_bubble":  # F + I - W, as far as W is the shortest of the three
        return (p - 1) * max(f + i - w, f, i) / v
    if name == "zero_bubble_v":  # at F = I = W; a few microbatches do not fill the V
        return (p - 1) * f / v + max(0.0, 3 * p - 2 * m - 1) / v * f
    if name == "dualpipe_v":
        return (p - 1) * f / v
    return (p - 1) * (f + i + w) / v


def off_the_closed_form(name, v, shapes):
    return [
        (p, m, seconds, expected)
        for p, m in shapes
        if (seconds := step(name, p, m, v).step_seconds)
        != (expected := 3 * m + bubble_seconds(name, p, m, v))
    ]


@pytest.mark.parametrize(("name", "v"), GRID)
def test_the_grid_takes_what_the_closed_form_says(name, v):
    """Every m up to 4 ranks; from there those around whole rounds and their middle."""
    shapes = [(each.num_ranks, each.num_microbatches) for each in grid(name, v)]

    assert not off_the_closed_form(name, v, shapes)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "v"), GRID)
def test_the_whole_grid_takes_what_the_closed_form_says(name, v):
    """2 to 16 ranks, and every m from p to 4p."""
    least = 2 if name == "dualpipe_v" else 1
    shapes = [(p, m) for p in range(2, 17) for m in range(least * p, 4 * p + 1)]

    assert not off_the_closed_form(name, v, shapes)


SECONDS = st.integers(1, 64).map(float)


@settings(max_examples=60, deadline=None)
@given(
    st.sampled_from([case for case in GRID if case[0] not in {"dualpipe_v", "zero_bubble_v"}]),
    st.integers(2, 8),
    st.integers(0, 24),
    *(SECONDS, SECONDS, SECONDS),
)
def test_closed_forms_hold_for_any_seconds_of_equal_stages(case, p, more, f, i, w):
    name, v = case
    if name == "interleaved":
        w += f  # its rule decides as if a backward took as long as two forwards
        i += f
    m = p + more
    expected = m * (f + i + w) + bubble_seconds(name, p, m, v, f=f, i=i, w=w)

    assert expected == step(name, p, m, v, f=f, i=i, w=w).step_seconds


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(SECONDS, SECONDS, SECONDS), min_size=1, max_size=8), st.integers(1, 24))
def test_gpipe_has_a_closed_form_for_unequal_stages(stages, m):
    """Once through everything, and for each further microbatch the slowest stage each way."""
    schedule = make_schedule("simple", num_ranks=len(stages), num_microbatches=m)
    once = sum(map(sum, stages))
    slowest = max(f for f, _, _ in stages) + max(i + w for _, i, w in stages)

    assert once + (m - 1) * slowest == simulate(schedule, [cost(*s) for s in stages]).step_seconds


@pytest.mark.parametrize(
    ("name", "v", "p", "m", "seconds", "bubble"),
    [
        ("simple", 1, 4, 8, 33, 0.273),
        ("1f1b", 1, 4, 8, 33, 0.273),
        ("interleaved", 1, 4, 8, 33, 0.273),
        ("interleaved_1f1b", 2, 4, 8, 28.5, 0.158),
        ("interleaved_1f1b", 4, 4, 8, 26.25, 0.086),
        ("looped_bfs", 2, 4, 8, 28.5, 0.158),
        ("zero_bubble", 1, 4, 8, 27, 0.111),
        ("zero_bubble", 2, 4, 8, 25.5, 0.059),
        ("zero_bubble_v", 2, 4, 8, 25.5, 0.059),
        ("dualpipe_v", 2, 4, 8, 25.5, 0.059),
        ("simple", 1, 8, 16, 69, 0.304),
        ("1f1b", 1, 8, 16, 69, 0.304),
        ("interleaved_1f1b", 2, 8, 16, 58.5, 0.179),
        ("interleaved_1f1b", 4, 8, 16, 53.25, 0.099),
        ("zero_bubble", 2, 8, 16, 51.5, 0.068),
        ("zero_bubble_v", 2, 8, 16, 51.5, 0.068),
        ("dualpipe_v", 2, 8, 16, 51.5, 0.068),
    ],
)
def test_steps_of_known_pipelines(name, v, p, m, seconds, bubble):
    timeline = step(name, p, m, v)

    assert seconds == timeline.step_seconds
    assert bubble == pytest.approx(timeline.bubble_fraction, abs=5e-4)


@pytest.mark.parametrize(
    ("name", "v", "in_flight"),
    [
        ("simple", 1, (8, 8, 8, 8)),
        ("1f1b", 1, (4, 3, 2, 1)),
        ("interleaved", 1, (6, 6, 4, 1)),
        ("interleaved_1f1b", 2, (5.5, 4.5, 3.5, 2.5)),
        ("interleaved_1f1b", 4, (4.75, 4.25, 3.75, 3.25)),
        ("looped_bfs", 2, (8, 8, 8, 8)),
        ("zero_bubble", 1, (4, 4, 4, 4)),
        ("zero_bubble", 2, (4, 4, 4, 4)),
        ("zero_bubble_v", 2, (4, 4, 4, 4)),
        ("dualpipe_v", 2, (4.5, 4.5, 4.5, 4.5)),
    ],
)
def test_peaks_of_four_ranks_and_eight_microbatches(name, v, in_flight):
    """In microbatches of a whole rank: v stages save v bytes for each."""

    assert in_flight == tuple(peak / v for peak in step(name, 4, 8, v).peak_bytes)


@pytest.mark.parametrize(("name", "v"), GRID)
@pytest.mark.parametrize("p", [2, 5])
def test_saved_bytes_are_those_of_the_microbatches_in_flight(name, v, p):
    for m in range(2 * p, 4 * p + 1):
        timeline = step(name, p, m, v)

        assert peak_in_flight(timeline.schedule) == timeline.peak_bytes


@pytest.mark.parametrize("p", [2, 7, 16])
def test_peaks_of_1f1b_and_its_rounds_follow_from_the_rank(p):
    for m in range(p, 4 * p + 1, p):
        assert tuple(min(m, p - r) for r in range(p)) == step("1f1b", p, m).peak_bytes
        if m > p:
            expected = tuple(p + 2 * (p - 1 - r) + 1 for r in range(p))  # v = 2

            assert expected == step("interleaved_1f1b", p, m, 2).peak_bytes


@pytest.mark.parametrize(("name", "seconds"), [("1f1b", 85.8), ("zero_bubble", 79.8)])
def test_a_slow_last_stage_sets_the_pace(name, seconds):
    """1.6 times as slow as the other three: it alone is busy for 76.8 of 16 microbatches."""
    schedule = make_schedule(name, num_ranks=4, num_microbatches=16)
    timeline = simulate(schedule, [*([cost()] * 3), cost(1.6, 1.6, 1.6)])

    assert seconds == pytest.approx(timeline.step_seconds)
    assert 76.8 == pytest.approx(timeline.busy_seconds[3])
