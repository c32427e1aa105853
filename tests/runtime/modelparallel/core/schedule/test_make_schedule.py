# SPDX-License-Identifier: Apache-2.0
"""make_schedule makes every kind by name and refuses, all at once, what a kind cannot use."""

import time

import pytest
from schedule_grid import NAMED

from sagemaker_dist.errors import OptionError
from smdist.modelparallel.core.schedule import SCHEDULES, make_schedule
from smdist.modelparallel.core.schedule.actions import Action, Do
from smdist.modelparallel.core.schedule.blocks import actions_of, alternate, split_backward


@pytest.mark.parametrize(("name", "virtual_stages"), NAMED)
def test_facts_are_those_of_the_schedules(name, virtual_stages):
    """What SCHEDULES says of a kind is what comes out."""
    kind = SCHEDULES[name]
    schedule = make_schedule(name, num_ranks=4, num_microbatches=8, virtual_stages=virtual_stages)

    assert (name, 8) == (schedule.name, schedule.num_microbatches)
    assert kind.splits_backward == schedule.splits_backward
    assert kind.is_v == (virtual_stages > 1 and schedule.rank_of[0] == schedule.rank_of[-1])
    assert {virtual_stages} == set(map(len, schedule.stages_of))


def test_stages_loop_or_turn_back():
    """Loops begin again at rank 0; a V ends there."""
    looped = make_schedule("looped_bfs", num_ranks=2, num_microbatches=2, virtual_stages=3)
    vee = make_schedule("zero_bubble_v", num_ranks=3, num_microbatches=2, virtual_stages=2)

    assert (0, 1, 0, 1, 0, 1) == looped.rank_of
    assert (0, 1, 2, 2, 1, 0) == vee.rank_of


@pytest.mark.parametrize(
    ("request_", "expected"),
    [
        ({"name": "interleavd"}, "schedule"),
        ({"name": None}, "schedule"),
        ({"num_ranks": 0}, "num_ranks"),
        ({"num_microbatches": 0}, "num_microbatches"),
        ({"num_microbatches": 2.0}, "num_microbatches"),
        ({"num_microbatches": True}, "num_microbatches"),
        ({"virtual_stages": 0}, "virtual_stages"),
        ({"virtual_stages": 2}, "virtual_stages"),
        ({"name": "zero_bubble_v"}, "virtual_stages"),
        ({"name": "zero_bubble_v", "virtual_stages": 3}, "virtual_stages"),
        ({"name": "looped_bfs"}, "virtual_stages"),
        ({"name": "interleaved_1f1b"}, "virtual_stages"),
        ({"name": "dualpipe_v", "virtual_stages": 2}, "num_microbatches"),
        ({"active_microbatches": 6}, "active_microbatches"),
        ({"name": "interleaved", "active_microbatches": 0}, "active_microbatches"),
        ({"name": "interleaved", "active_microbatches": 2.5}, "active_microbatches"),
    ],
)
def test_a_bad_request_is_refused(request_, expected):
    """The error is about the option that is wrong."""
    assert (expected,) == refusal(**request_).about


@pytest.mark.parametrize(
    ("request_", "expected"),
    [
        (
            {"name": "zb"},
            "schedule is 'zb': no schedule has this name. Valid are '1f1b', 'dualpipe_v',"
            " 'interleaved', 'interleaved_1f1b', 'looped_bfs', 'simple', 'zero_bubble',"
            " 'zero_bubble_v'.",
        ),
        (
            {"name": "zero_bubble_v", "virtual_stages": 3},
            "virtual_stages is 3: schedule 'zero_bubble_v' needs exactly 2 stages on each"
            " rank. Pass virtual_stages=2, or use schedule 'interleaved_1f1b' or 'looped_bfs' or"
            " 'zero_bubble'.",
        ),
        (
            {"active_microbatches": 6},
            "active_microbatches is 6: the order of schedule '1f1b' determines how many"
            " microbatches are in flight. Leave active_microbatches out, or use schedule"
            " 'interleaved'.",
        ),
        (
            {"name": "dualpipe_v", "virtual_stages": 2},
            "num_microbatches is 4: schedule 'dualpipe_v' needs at least 8 on 4 ranks. Pass"
            " num_microbatches=8 or more, or use schedule '1f1b'.",
        ),
    ],
)
def test_an_error_says_the_value_the_reason_and_what_to_do(request_, expected):
    assert expected == str(refusal(**request_))


def refusal(**request_):
    with pytest.raises(OptionError) as raised:
        make_schedule(**{"name": "1f1b", "num_ranks": 4, "num_microbatches": 4, **request_})
    return raised.value


def test_all_faults_are_reported_at_once():
    """Unknown name, no ranks, no microbatches."""
    with pytest.raises(OptionError) as raised:
        make_schedule("1f2b", num_ranks=0, num_microbatches=-1)
    assert 3 == len(raised.value.faults)


def test_alternation_begins_with_the_warmup():
    """The rest of the longer side comes at the end."""
    forwards, backwards = actions_of(Do.F, 0, range(4)), actions_of(Do.B, 0, range(4))

    expected = "0F0 0F1 0B0 0F2 0B1 0F3 0B2 0B3"
    assert expected == _words(alternate(forwards, backwards, warmup=2))
    assert _words(forwards + backwards) == _words(alternate(forwards, backwards, warmup=9))


def test_split_weight_gradients_wait_in_line():
    """So many wait; what is left comes at the end."""
    order = [Action(do, 0, n) for n in range(3) for do in (Do.F, Do.B)]

    expected = "0F0 0I0 0F1 0I1 0W0 0F2 0I2 0W1 0W2"
    assert expected == _words(split_backward(order, delay=1))


@pytest.mark.parametrize(
    ("name", "virtual_stages"), [("1f1b", 1), ("interleaved", 1), ("zero_bubble", 4)]
)
def test_64_ranks_and_256_microbatches_take_no_time(name, virtual_stages):
    """Planners make hundreds of schedules."""
    began = time.process_time()
    schedule = make_schedule(
        name, num_ranks=64, num_microbatches=256, virtual_stages=virtual_stages
    )

    assert 64 * 256 * virtual_stages * 2 <= sum(map(len, schedule.orders))
    assert 3 > time.process_time() - began  # well under a second on a quiet machine


def _words(order):
    return " ".join(map(str, order))
