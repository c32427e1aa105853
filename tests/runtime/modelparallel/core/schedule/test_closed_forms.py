# SPDX-License-Identifier: Apache-2.0
"""Peaks and times are the closed forms of the literature, on the whole grid."""

from math import ceil

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from schedule_grid import NAMED, grid, made

from smdist.modelparallel.core.schedule import SCHEDULES, Do, make_schedule, peak_in_flight
from smdist.modelparallel.core.schedule.drawing import COLUMNS, ends_in_columns


def _round(shape):
    """How many microbatches the longest round has: p, if p divides m."""
    return ceil(shape.num_microbatches / max(1, shape.num_microbatches // shape.num_ranks))


def _interleaved_1f1b_peak(p, m, v, rank, longest_round):
    return min(m * v, (v - 1) * longest_round + 2 * (p - 1 - rank) + 1)


def _makespan(schedule, units=COLUMNS):
    return max(ends[-1] for ends in ends_in_columns(schedule, units))


PEAKS = {
    "simple": lambda p, m, v, rank, q: m,
    "1f1b": lambda p, m, v, rank, q: min(m, p - rank),
    "interleaved": lambda p, m, v, rank, q: min(m, p + 2, 3 * (p - 1 - rank) + 1),
    "looped_bfs": lambda p, m, v, rank, q: m * v,
    "interleaved_1f1b": _interleaved_1f1b_peak,
    "zero_bubble": lambda p, m, v, rank, q: min(m * v, (v - 1) * q + p),
    "dualpipe_v": lambda p, m, v, rank, q: 2 * p + 1,
}


@pytest.mark.parametrize(("name", "virtual_stages"), [pair for pair in NAMED if pair[0] in PEAKS])
def test_peaks_are_the_closed_forms(name, virtual_stages):
    """q, the longest round, is p wherever p divides m: there they are the published ones."""
    for shape in grid(name, virtual_stages):
        p, m, q = shape.num_ranks, shape.num_microbatches, _round(shape)
        expected = tuple(PEAKS[name](p, m, virtual_stages, rank, q) for rank in range(p))

        assert expected == peak_in_flight(made(name, shape)), shape


def test_every_schedule_has_a_closed_form_of_its_peaks():
    """zero_bubble_v has a test of its own."""
    assert set(SCHEDULES) == {*PEAKS, "zero_bubble_v"}


def test_peaks_of_zbv_are_those_of_1f1bs_first_rank_everywhere():
    """2p stage-microbatches, p of a whole rank, on every rank; less where there are fewer than
    2p - 1 microbatches."""
    for shape in grid("zero_bubble_v", 2):
        p, m = shape.num_ranks, shape.num_microbatches
        peaks = peak_in_flight(made("zero_bubble_v", shape))

        assert max(peaks) <= 2 * p
        if m >= 2 * p - 1:
            assert (2 * p,) * p == peaks, shape


def test_peaks_for_four_ranks_and_eight_microbatches():
    """The table of SageMaker's schedules and of their rivals; V shapes count halves of a rank."""
    expected = {
        ("simple", 1): (8, 8, 8, 8),
        ("1f1b", 1): (4, 3, 2, 1),
        ("interleaved", 1): (6, 6, 4, 1),
        ("interleaved_1f1b", 2): (11, 9, 7, 5),
        ("interleaved_1f1b", 4): (19, 17, 15, 13),
        ("looped_bfs", 2): (16, 16, 16, 16),
        ("looped_bfs", 4): (32, 32, 32, 32),
        ("zero_bubble", 1): (4, 4, 4, 4),
        ("zero_bubble", 2): (8, 8, 8, 8),
        ("zero_bubble", 4): (16, 16, 16, 16),
        ("zero_bubble_v", 2): (8, 8, 8, 8),
        ("dualpipe_v", 2): (9, 9, 9, 9),
    }
    peaks = {
        (name, v): peak_in_flight(
            make_schedule(name, num_ranks=4, num_microbatches=8, virtual_stages=v)
        )
        for name, v in NAMED
    }

    assert expected == peaks


@pytest.mark.parametrize("active", [1, 2, 3, 4, 5, 6, 9, 40])
def test_active_microbatches_are_a_cap(active):
    """No rank holds more than the cap, nor more than its first gradient gives it time for."""
    schedule = make_schedule(
        "interleaved", num_ranks=4, num_microbatches=16, active_microbatches=active
    )

    assert tuple(min(16, active, limit) for limit in (10, 7, 4, 1)) == peak_in_flight(schedule)


def test_backward_first_takes_turns_in_the_steady_state():
    """On the first and the last rank a backward and a forward take turns until forwards end."""
    schedule = make_schedule("interleaved", num_ranks=4, num_microbatches=16)
    for rank, lead in ((0, 6), (3, 1)):
        dos = [action.do for action in schedule.orders[rank]]
        turns = [Do.B, Do.F] * (16 - lead)

        assert [Do.F] * lead + turns + [Do.B] * lead == dos


@pytest.mark.parametrize(
    ("name", "virtual_stages"),
    [pair for pair in NAMED if pair[0] not in {"zero_bubble_v", "dualpipe_v"}],
)
@given(
    forward=st.integers(1, 9),
    inputs=st.integers(1, 9),
    weights=st.integers(1, 9),
    ranks=st.integers(2, 6),
    more=st.integers(0, 12),
)
@settings(deadline=None, max_examples=25)
def test_times_are_the_closed_forms_however_long_passes_are(
    name, virtual_stages, forward, inputs, weights, ranks, more
):
    """(p - 1) times F and B of one stage; of zero bubble, what no weight gradient can fill.
    Of SageMaker's interleaved only while a forward is no longer than a backward, on as few
    ranks as here: its caps on microbatches under way leave gaps elsewhere."""
    assume(name != "interleaved" or forward <= inputs + weights)
    schedule = make_schedule(
        name, num_ranks=ranks, num_microbatches=ranks + more, virtual_stages=virtual_stages
    )
    units = {Do.F: forward, Do.B: inputs + weights, Do.I: inputs, Do.W: weights}
    work = (ranks + more) * virtual_stages * (forward + inputs + weights)
    filled = min(forward, inputs, weights) if name == "zero_bubble" else -weights

    assert work + (ranks - 1) * (forward + inputs - filled) == _makespan(schedule, units)


def test_interleaved_waits_where_forwards_are_the_longer_ones():
    """With F = 5 and B = 2, (m + p - 1)(F + B) = 84 are not reached; 1F1B reaches them."""
    units = {Do.F: 5, Do.B: 2, Do.I: 1, Do.W: 1}
    makespans = {
        name: _makespan(make_schedule(name, num_ranks=5, num_microbatches=8), units)
        for name in ("1f1b", "interleaved")
    }

    assert makespans == {"1f1b": 84, "interleaved": 86}


@pytest.mark.parametrize(("name", "virtual_stages"), NAMED)
def test_times_are_the_closed_forms(name, virtual_stages):
    """At tF = tI = tW = 1 for each stage: what all have to do, and (p - 1) times what a schedule
    lets ranks wait for at the ends."""
    bubble = {"simple": 3, "1f1b": 3, "interleaved": 3, "looped_bfs": 3, "interleaved_1f1b": 3}
    for shape in grid(name, virtual_stages):
        p, m, v = shape.num_ranks, shape.num_microbatches, virtual_stages
        if p > 8 or (name == "zero_bubble_v" and m < 2 * p - 1):
            continue
        expected = 3 * m * v + bubble.get(name, 1) * (p - 1)

        assert expected == _makespan(made(name, shape)), shape
