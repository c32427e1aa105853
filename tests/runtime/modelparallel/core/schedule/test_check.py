# SPDX-License-Identifier: Apache-2.0
"""check_schedule passes every schedule of ours and refuses what cannot run."""

from collections import defaultdict, deque
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from schedule_grid import NAMED, grid, made

from sagemaker_dist.errors import OptionError, parts_of
from smdist.modelparallel.core.schedule import (
    Do,
    check_schedule,
    least_buffers,
    make_schedule,
    parse_drawing,
)


@pytest.mark.parametrize(("name", "virtual_stages"), NAMED)
def test_every_schedule_passes(name, virtual_stages):
    """On the whole grid: all is done once and in order, no rank waits for ever, with rendezvous
    and with buffers, and channels are taken from in the order in which they are sent to."""
    for shape in grid(name, virtual_stages):
        check_schedule(made(name, shape))


@pytest.mark.parametrize(("name", "virtual_stages"), NAMED)
def test_few_microbatches_and_one_rank_pass(name, virtual_stages):
    """So do pipelines of one rank, and of fewer microbatches than ranks where a kind takes them."""
    for ranks in range(1, 6):
        for microbatches in range(1, ranks + 1):
            if name != "dualpipe_v":
                check_schedule(_made(name, ranks, microbatches, virtual_stages))
        check_schedule(_made(name, ranks, 2 * ranks, virtual_stages))


@pytest.mark.parametrize(
    ("name", "virtual_stages", "expected"),
    [
        ("simple", 1, 1),
        ("1f1b", 1, 1),
        ("interleaved", 1, 2),
        ("interleaved_1f1b", 4, 1),
        ("zero_bubble", 1, 1),
        ("zero_bubble_v", 2, 1),
        ("dualpipe_v", 2, 1),
        ("looped_bfs", 2, 4),
    ],
)
def test_how_many_buffers_channels_need(name, virtual_stages, expected):
    """One message for most, however many go through. What is done ahead waits in a channel."""
    schedule = _made(name, 4, 16, virtual_stages)

    assert expected == least_buffers(schedule)
    check_schedule(schedule, buffers=expected)


def test_too_few_buffers_are_refused():
    """SMP's interleaved sends two forwards before the receiver takes the first of them."""
    with pytest.raises(OptionError) as raised:
        check_schedule(_made("interleaved", 4, 8), buffers=1)

    assert ("deadlock", ("buffers",)) == (raised.value.kind, raised.value.about)


def test_a_dropped_and_a_doubled_action_are_reported_together():
    """All faults of a kind are reported at once."""
    schedule = _made("1f1b", 2, 2)
    first, second = schedule.orders
    faulty = replace(schedule, orders=(first[:-1], (*second, second[-1])))

    with pytest.raises(OptionError) as raised:
        check_schedule(faulty)

    assert [
        ("missing_action", ("orders", 0, "0B1")),
        ("repeated_action", ("orders", 1, "1B1")),
    ] == [(fault.kind, fault.about) for fault in raised.value.faults]


@pytest.mark.parametrize(
    ("drawing", "kind", "about"),
    [
        (
            "rank 0  F0 B0===\nrank 1  F0 I0",
            "missing_action",
            ("orders", 1, "1W0"),
        ),
        (
            "rank 0  F0 B0===\nrank 1  F0 B0=== W0",
            "repeated_action",
            ("orders", 1, "1W0"),
        ),
        (
            "rank 0  F0 B0===\nrank 1  B0=== F0",
            "action_order",
            ("orders", 1, "1B0"),
        ),
        (
            "rank 0  F0 B0===\nrank 1  F0 B0=== 0F0",
            "unknown_action",
            ("orders", 1, "0F0"),
        ),
        (
            "rank 0  F0 B0===\nrank 1  F0 B0=== 2F0",
            "unknown_action",
            ("orders", 1, "2F0"),
        ),
        (
            "rank 0  F0 B0=== F1 B1===\nrank 1  F0 F1 B0=== B1===",
            "deadlock",
            ("orders",),
        ),
        (
            "rank 0  F0 F1 B1=== B0===\nrank 1  F1 B1=== F0 B0===",
            "message_order",
            ("orders", 0, "0F1"),
        ),
    ],
)
def test_an_error_names_rank_and_action(drawing, kind, about):
    with pytest.raises(OptionError) as raised:
        check_schedule(parse_drawing(drawing))

    assert (kind, about) == (raised.value.kind, raised.value.about)


def test_the_text_of_a_deadlock_has_all_ranks_that_wait():
    drawing = "rank 0  F0 B0=== F1 B1===\nrank 1  F0 F1 B0=== B1==="
    with pytest.raises(OptionError) as raised:
        check_schedule(parse_drawing(drawing))

    assert (
        "the ranks wait for each other: rank 0 waits at 0B0 for 1B0 of rank 1; rank 1 waits at 1F1"
        " for 0F1 of rank 0. Correct the order, or make the schedule with make_schedule()."
    ) == str(raised.value)


@pytest.mark.parametrize(
    ("drawing", "kind", "about"),
    [
        ("rank 0  F0\nrank 1  F0 B0===", "missing_action", ("orders", 0, "0B0")),
        ("rank 0  F0 W0 I0\nrank 1  F0 B0===", "action_order", ("orders", 0, "0W0")),
    ],
)
def test_kinds_are_the_same_on_every_rank(drawing, kind, about):
    with pytest.raises(OptionError) as raised:
        check_schedule(parse_drawing(drawing))

    assert (kind, about) == (raised.value.kind, raised.value.about)


def test_stages_on_ranks_that_there_are_not_are_refused():
    """Neither a stage without a rank nor a rank without a stage."""
    schedule = _made("1f1b", 2, 2)

    with pytest.raises(OptionError) as raised:
        check_schedule(replace(schedule, rank_of=(0, 2)))

    assert [("rank_of", 1), ("rank_of",)] == [fault.about for fault in raised.value.faults]


def test_a_microbatch_too_many_is_refused():
    """An edited plan may say fewer microbatches than its order has."""
    with pytest.raises(OptionError) as raised:
        check_schedule(replace(_made("1f1b", 2, 2), num_microbatches=1))

    assert {"unknown_action"} == {fault.kind for fault in raised.value.faults}
    assert ("orders", 0, "0F1") == raised.value.faults[0].about


small = st.builds(
    lambda pair, ranks, more: _made(pair[0], ranks, 2 * ranks + more, pair[1]),
    st.sampled_from(NAMED),
    st.integers(1, 4),
    st.integers(0, 3),
)


@given(schedule=small, data=st.data())
@settings(deadline=None, max_examples=60)
def test_a_dropped_action_is_refused(schedule, data):
    """Whichever is missing, the error names it."""
    rank, index = _pick(schedule, data)
    order = schedule.orders[rank]

    with pytest.raises(OptionError) as raised:
        check_schedule(_with_order(schedule, rank, order[:index] + order[index + 1 :]))

    assert ("missing_action", ("orders", rank, str(order[index]))) in kinds(raised.value)


@given(schedule=small, data=st.data())
@settings(deadline=None, max_examples=60)
def test_a_doubled_action_is_refused(schedule, data):
    """Wherever the second stands, the error names it."""
    rank, index = _pick(schedule, data)
    order = list(schedule.orders[rank])
    action = order[index]
    order.insert(data.draw(st.integers(0, len(order))), action)

    with pytest.raises(OptionError) as raised:
        check_schedule(_with_order(schedule, rank, order))

    assert ("repeated_action", ("orders", rank, str(action))) in kinds(raised.value)


@given(schedule=small, data=st.data())
@settings(deadline=None, max_examples=60)
def test_swapped_dependents_are_refused(schedule, data):
    """A stage's forward and backward of one microbatch do not change places."""
    rank, index = _pick(schedule, data)
    order = list(schedule.orders[rank])
    chosen = order[index]
    same = [
        place
        for place, action in enumerate(order)
        if (action.stage, action.microbatch) == (chosen.stage, chosen.microbatch)
    ]
    order[same[0]], order[same[1]] = order[same[1]], order[same[0]]

    with pytest.raises(OptionError) as raised:
        check_schedule(_with_order(schedule, rank, order))

    assert {"action_order"} == {kind for kind, _ in kinds(raised.value)}
    assert {rank} == {about[1] for _, about in kinds(raised.value)}


@given(schedule=small, buffers=st.integers(1, 3), data=st.data())
@settings(deadline=None, max_examples=200)
def test_it_passes_what_runs_and_refuses_what_does_not(schedule, buffers, data):
    """Actions of one rank change places at random: the verdict is that of ranks that really send
    and receive, over channels that hold so many messages and have no tags."""
    for _ in range(data.draw(st.integers(0, 2))):
        rank, index = _pick(schedule, data)
        order = list(schedule.orders[rank])
        other = min(index + data.draw(st.integers(1, 4)), len(order) - 1)
        order[index], order[other] = order[other], order[index]
        schedule = _with_order(schedule, rank, order)

    assert _runs(schedule, buffers) == _passes(schedule, buffers)


def kinds(error):
    """Return kind and place of every fault of an error."""
    return [(fault.kind, fault.about) for fault in parts_of(error)]


def _passes(schedule, buffers):
    try:
        check_schedule(schedule, buffers=buffers)
    except OptionError:
        return False
    return True


def _runs(schedule, buffers):
    """Whether ranks that are moved on one by one, as they can be, all come to their ends."""
    ranks = [_Rank(schedule, rank) for rank in range(schedule.num_ranks)]
    channels = defaultdict(deque)
    while any(rank.move(channels, buffers) for rank in ranks):
        pass
    return all(rank.is_done for rank in ranks)


class _Rank:
    """Takes messages, computes and sends, one thing at a time."""

    def __init__(self, schedule, rank):
        self.schedule, self.rank = schedule, rank
        self.left = deque(schedule.orders[rank])
        self.known = set()  # results on this rank
        self.sending = None

    @property
    def is_done(self):
        return not self.left and self.sending is None

    def move(self, channels, buffers):
        """Do one thing; say whether there was one to do."""
        if self.sending is not None:
            return self._send(channels, buffers)
        if not self.left:
            return False
        missing = [need for need in self._needs(self.left[0]) if need not in self.known]
        if not missing:
            self._compute(self.left.popleft())
            return True
        return any(self._take(need, channels) for need in missing)

    def _take(self, need, channels):
        do, stage, _ = need
        if not 0 <= stage < self.schedule.num_stages:
            return False
        channel = channels[self.schedule.rank_of[stage], self.rank, do]
        if not channel or channel[0] != need:
            return False
        self.known.add(channel.popleft())
        return True

    def _compute(self, action):
        do = Do.B if action.do is Do.I else action.do
        result = (do, action.stage, action.microbatch)
        self.known.add(result)
        to = action.stage + {Do.F: 1, Do.B: -1}.get(do, 0)
        is_sent = do is not Do.W and 0 <= to < self.schedule.num_stages
        if is_sent and self.schedule.rank_of[to] != self.rank:
            self.sending = (self.schedule.rank_of[to], result)

    def _send(self, channels, buffers):
        target, result = self.sending
        channel = channels[self.rank, target, result[0]]
        if len(channel) >= buffers:
            return False
        channel.append(result)
        self.sending = None
        return True

    def _needs(self, action):
        do, stage, microbatch = action.do, action.stage, action.microbatch
        if do is Do.F:
            return [(Do.F, stage - 1, microbatch)] * (stage > 0)
        if do is Do.W:
            return [(Do.B, stage, microbatch)]
        after = [(Do.B, stage + 1, microbatch)] * (stage + 1 < self.schedule.num_stages)
        return [(Do.F, stage, microbatch), *after]


def _made(name, ranks, microbatches, virtual_stages=1):
    return make_schedule(
        name, num_ranks=ranks, num_microbatches=microbatches, virtual_stages=virtual_stages
    )


def _pick(schedule, data):
    rank = data.draw(st.integers(0, schedule.num_ranks - 1))
    return rank, data.draw(st.integers(0, len(schedule.orders[rank]) - 1))


def _with_order(schedule, rank, order):
    orders = list(schedule.orders)
    orders[rank] = tuple(order)
    return replace(schedule, orders=tuple(orders))
