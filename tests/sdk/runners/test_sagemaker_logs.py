# SPDX-License-Identifier: Apache-2.0
"""Every line of CloudWatch is yielded once, whenever it becomes visible."""

from collections import Counter
from itertools import chain

import pytest
from cloudwatch import Logs, Time
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sagemaker_dist.runners.sagemaker.api_errors import PassingError
from sagemaker_dist.runners.sagemaker.logs import LATE_MS, Follower, Tail, segments

pytestmark = pytest.mark.timeout(120)
BEGIN = 10_000_000
STREAMS = ("job/algo-1-1700000000", "job/algo-2-1700000000", "job/algo-10-1700000001")
A, B = STREAMS[:2]


def tail(logs: Logs) -> Tail:
    return Tail("job", logs.fetch, BEGIN)


def follower(logs, *, over_at=0, settled=False, poll_seconds=5.0):
    """Return a follower of a job that has ended from the given read on, counted from 0."""
    looks = iter(range(10_000))
    time = Time()
    return Follower(
        tail=tail(logs),
        is_over=lambda: next(looks) >= over_at,
        is_settled=lambda: settled,
        poll_seconds=poll_seconds,
        clock=time.clock,
    ), time


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        ("text", ["[algo-1] text\n"]),
        ("text\n", ["[algo-1] text\n"]),
        ("text\r", ["[algo-1] text\r\n"]),  # the line break was CloudWatch's
        (" ", ["[algo-1]  \n"]),
        ("[algo-1 rank 0] text", ["[algo-1 rank 0] text\n"]),
        ("[algo-1] text", ["[algo-1] text\n"]),
        ("[algo-10] text", ["[algo-1] [algo-10] text\n"]),
        ("\r 0%\r50%\r100%", [f"[algo-1] {s}" for s in ("\r", " 0%\r", "50%\r", "100%\n")]),
        ("one\ntwo", ["[algo-1] one\n", "[algo-1] two\n"]),
        ("a\u2028b\x0bc\x85d", ["[algo-1] a\u2028b\x0bc\x85d\n"]),  # no line breaks for us
    ],
)
def test_message_becomes_segments(message, expected):
    assert expected == list(segments(message, "algo-1"))


def test_hosts_are_merged_in_the_order_of_time():
    logs = Logs([[(A, BEGIN + 1, "1"), (A, BEGIN + 4, "4"), (B, BEGIN + 2, "2")]], page_size=2)

    assert ["[algo-1] 1\n", "[algo-2] 2\n", "[algo-1] 4\n"] == list(tail(logs).read())


def test_stream_of_a_host_that_came_back_has_its_name():
    """The new stream of an interrupted spot host has the same host name."""
    logs = Logs([[(A, BEGIN, "before"), ("job/algo-1-1700009999", BEGIN + 9, "after")]])

    assert ["[algo-1] before\n", "[algo-1] after\n"] == list(tail(logs).read())


def test_stream_of_another_job_is_left_out():
    """Events of a stream outside the job's prefix are ignored."""
    logs = Logs([[("job-2/algo-1-17", BEGIN, "theirs"), (A, BEGIN, "ours")]])

    assert ["[algo-1] ours\n"] == list(tail(logs).read())


def test_empty_page_is_not_the_end():
    """An empty page with a token is followed by the next page."""
    event = {"eventId": "1", "logStreamName": A, "timestamp": BEGIN, "message": "text"}
    pages = iter([{"events": [], "nextToken": "more"}, {"events": [event]}])

    assert ["[algo-1] text\n"] == list(Tail("job", lambda *_: next(pages), BEGIN).read())


def test_look_goes_back_two_minutes_behind_the_newest_line():
    """Each read starts two minutes before the newest line, and the stored ids do not grow."""
    logs = Logs([[(A, BEGIN + second * 1000, "text")] for second in range(300)])
    seen = tail(logs)
    for _ in range(300):
        assert 1 == len(list(seen.read()))

    assert BEGIN + 298_000 - LATE_MS == logs.calls[-1]
    assert 122 >= len(seen._shown)


def test_clock_of_a_host_that_is_ahead_hides_nothing():
    """A host whose clock is an hour fast does not hide other hosts' lines."""
    ahead = {
        "eventId": "0",
        "logStreamName": A,
        "timestamp": BEGIN + 3_600_000,
        "ingestionTime": BEGIN,
        "message": "ahead",
    }
    logs = Logs([[], [(B, BEGIN + 1000, "right")]])
    logs.events.append(ahead)
    seen = tail(logs)

    assert ["[algo-1] ahead\n"] == list(seen.read())
    assert ["[algo-2] right\n"] == list(seen.read())


def test_sixty_four_hosts_are_one_call():
    streams = [f"job/algo-{host}-1700000000" for host in range(1, 65)]
    logs = Logs([[(stream, BEGIN, "text") for stream in streams]], page_size=10_000)

    assert 64 == len(set(tail(logs).read()))
    assert 1 == len(logs.calls)


def test_job_that_is_over_is_read_until_two_looks_bring_nothing():
    """After the end of the job, reading continues until two reads find nothing new."""
    logs = Logs([[(A, BEGIN, "1")], [], [(A, BEGIN + 1, "2")], [], []])
    shown, time = follower(logs)

    assert ["[algo-1] 1\n", "[algo-1] 2\n"] == [s for s in shown.follow() if s]
    assert 5 == len(logs.calls)
    assert 20.0 == pytest.approx(sum(time.naps))


def test_job_that_was_over_long_ago_is_read_once():
    logs = Logs([[(A, BEGIN, "1")]])
    shown, time = follower(logs, settled=True)

    assert ["[algo-1] 1\n"] == list(shown.follow())
    assert ([], 1) == (time.naps, len(logs.calls))


def test_moments_without_news_are_marked():
    """Empty strings are yielded several times a second, so that a viewer can show time and handle
    Ctrl-C.
    """
    logs = Logs([[], [(A, BEGIN, "1")], [], []])
    shown, time = follower(logs, over_at=2)
    segments = list(shown.follow())

    assert [""] * 25 == segments[: segments.index("[algo-1] 1\n")]
    assert 0.2 >= max(time.naps)


def test_look_of_many_pages_is_followed_by_a_longer_pause():
    """A read of several pages is followed by a pause of one second per page."""
    logs = Logs([[(A, BEGIN, "text")] * 90, [], []], page_size=10)
    shown, time = follower(logs)
    list(shown.follow())

    assert 3 * 9 == len(logs.calls)
    assert 18.0 == pytest.approx(sum(time.naps))


def test_failures_in_a_row_are_waited_for_longer_and_longer():
    logs = Logs([[(A, BEGIN, "1")]], faults=frozenset({1, 2, 3}))
    shown, time = follower(logs)

    assert ["[algo-1] 1\n"] == [s for s in shown.read() if s]
    assert 5.0 + 10.0 + 20.0 == pytest.approx(sum(time.naps))


def test_failures_without_end_are_an_error():
    logs = Logs([], faults=frozenset(range(100)))
    shown, time = follower(logs)
    with pytest.raises(PassingError):
        list(shown.follow())

    assert 480 == pytest.approx(sum(time.naps), abs=60)


MESSAGES = st.tuples(st.sampled_from(STREAMS), st.integers(0, LATE_MS))


@st.composite
def histories(draw, *, in_order: bool):
    """Generate lines of three hosts within two minutes, and the read at which each becomes
    visible.
    """
    said = draw(st.lists(MESSAGES, max_size=40))
    lines = [(stream, BEGIN + at, str(number)) for number, (stream, at) in enumerate(said)]
    looks = [draw(st.integers(0, 7)) for _ in lines]
    if in_order:  # an agent sends what its host says one after the other
        lines.sort(key=lambda line: line[1])
        for stream in STREAMS:
            places = [place for place, line in enumerate(lines) if line[0] == stream]
            for place, look in zip(places, sorted(looks[p] for p in places), strict=True):
                looks[place] = look
    arrivals = [[] for _ in range(8)]
    for line, look in zip(lines, looks, strict=True):
        arrivals[look].append(line)
    return arrivals


def shown_of(logs):
    shown, _ = follower(logs, over_at=9, poll_seconds=1.0)
    return [segment for segment in shown.follow() if segment]


def lines_of(arrivals):
    hosts = {stream: stream.partition("/")[2].rpartition("-")[0] for stream in STREAMS}
    return [f"[{hosts[stream]}] {text}\n" for stream, _, text in chain(*arrivals)]


PAGES, FAULTS = st.integers(1, 10), st.frozensets(st.integers(1, 40), max_size=8)
PROPERTY = settings(
    max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


@PROPERTY
@given(histories(in_order=False), PAGES, FAULTS, st.booleans())
def test_every_line_comes_once(arrivals, page_size, faults, between_pages):
    """Late streams, late lines, any pages, failed calls and lines between pages lose or repeat
    nothing.
    """
    expected = Counter(lines_of(arrivals))
    logs = Logs(list(arrivals), page_size, faults, between_pages)

    assert expected == Counter(shown_of(logs))


@PROPERTY
@given(histories(in_order=True), PAGES, FAULTS)
def test_lines_of_a_host_come_in_its_order(arrivals, page_size, faults):
    """Lines of a host keep their order, if CloudWatch shows them in order."""
    said = lines_of([sorted(chain(*arrivals), key=lambda line: line[1])])
    shown = shown_of(Logs(list(arrivals), page_size, faults))

    for host in ("algo-1", "algo-2", "algo-10"):
        mark = f"[{host}]"
        assert [s for s in said if s.startswith(mark)] == [s for s in shown if s.startswith(mark)]
