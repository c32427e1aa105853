# SPDX-License-Identifier: Apache-2.0
"""Timelines for other programs."""

import json

from pipelines import by_hand, cost

from smdist.modelparallel.core.simulate import chrome_trace, rows, simulate


def test_every_action_and_reduction_is_a_row_of_json():
    schedule = by_hand("0F0 0B0", "1F0 1B0")
    table = rows(simulate(schedule, [cost(saved=3), cost()], reduce_seconds=(5, 0)))
    expected = {
        "rank": 0,
        "do": "B",
        "stage": 0,
        "microbatch": 0,
        "start_seconds": 4,
        "end_seconds": 6,
        "held_bytes": 3,
    }

    assert 5 == len(table)
    assert expected == table[1]
    assert ("reduce", 0, 6, 11) == tuple(
        table[4][name] for name in ("do", "rank", "start_seconds", "end_seconds")
    )
    assert table == json.loads(json.dumps(table))


def test_the_trace_has_one_track_for_each_rank():
    trace = chrome_trace(simulate(by_hand("0F0 0B0", "1F0 1B0"), [cost(), cost()]))
    tracks = {
        (event["pid"], event["tid"]): event["args"]["name"]
        for event in trace["traceEvents"]
        if event["name"] == "thread_name"
    }

    assert {(0, 0): "rank 0", (0, 1): "rank 1"} == tracks


def test_a_trace_event_has_what_the_format_asks_for():
    """Complete events: name, category, process, thread, start and length in microseconds."""
    trace = chrome_trace(simulate(by_hand("0F0 0F1", "1F0 1F1"), [cost(), cost()]))
    event = next(event for event in trace["traceEvents"] if event["ph"] == "X")
    last = trace["traceEvents"][-1]

    assert {"ph", "name", "cat", "pid", "tid", "ts", "dur", "args"} == set(event)
    assert ("F1", "F", 1, 2e6, 1e6) == tuple(
        last[name] for name in ("name", "cat", "tid", "ts", "dur")
    )
    assert trace == json.loads(json.dumps(trace))


def test_names_have_the_stage_where_ranks_have_several():
    timeline = simulate(by_hand("0F0 1F0 1B0 0B0", rank_of=(0, 0)), [cost(), cost()])
    events = chrome_trace(timeline)["traceEvents"]

    assert ["0F0", "1F0", "1B0", "0B0"] == [e["name"] for e in events if e["ph"] == "X"]


def test_reductions_have_tracks_of_their_own():
    """They overlap with what the rank computes, which one track cannot show."""
    schedule = by_hand("0F0 1F0 1B0 0B0", rank_of=(0, 0))
    timeline = simulate(schedule, [cost(), cost()], stage_reduce_seconds=(1, 1))
    events = chrome_trace(timeline)["traceEvents"]
    names = {e["args"]["name"]: e["pid"] for e in events if e["name"] == "process_name"}

    assert {"pipeline": 0, "replicas": 1} == names
    assert [("reduce 1", 1, 0, 4e6), ("reduce 0", 1, 0, 6e6)] == [
        (e["name"], e["pid"], e["tid"], e["ts"]) for e in events if e.get("cat") == "reduce"
    ]
