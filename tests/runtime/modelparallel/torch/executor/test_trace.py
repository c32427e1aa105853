# SPDX-License-Identifier: Apache-2.0
"""Records of a run: what they say, what they cost, and that other programs can read them."""

import json
from time import perf_counter

import pytest
import torch.distributed as dist
from recording import record

from sagemaker_dist.errors import OptionError
from smdist.modelparallel.core.placement import Edge
from smdist.modelparallel.core.schedule import make_schedule
from smdist.modelparallel.torch.executor.run_trace import Recorder, Run, gather

PARTS = ("F", "B", "I", "W")


@pytest.fixture(scope="module")
def recorded(world):
    """Three steps on two ranks with two stages each, as every rank has them."""
    answers = world.run(record, "interleaved_1f1b", 2, 4, 0.004, 3, size=2, deadline=120)
    return [run for run, _ in answers]


def test_all_ranks_have_the_records_of_all(recorded):
    assert recorded[0] == recorded[1]
    assert [0, 1] == [track.rank for track in recorded[0].tracks]


def test_each_action_of_each_step_is_recorded_once(recorded):
    run = recorded[0]
    for track, order in zip(run.tracks, run.schedule.orders, strict=True):
        found = [
            (event.step, event.kind, event.stage, event.microbatch)
            for event in track.events
            if event.kind in PARTS
        ]
        expected = [(n, a.do.value, a.stage, a.microbatch) for n in range(3) for a in order]

        assert expected == found
        assert 0 == track.num_lost


def test_a_trace_is_what_the_format_asks_for(recorded, tmp_path):
    """Keys, times that ascend, slices that lie in one another or apart, arrows with two ends."""
    recorded[0].save(tmp_path / "trace.json")
    document = json.loads((tmp_path / "trace.json").read_text())
    events = document["traceEvents"]
    slices = [event for event in events if event["ph"] == "X"]
    timed = [event["ts"] for event in events if event["ph"] != "M"]

    assert {"M", "X", "s", "f"} == {event["ph"] for event in events}
    assert all({"name", "pid"} <= event.keys() for event in events)
    assert all({"cat", "tid", "ts", "dur", "args"} <= event.keys() for event in slices)
    assert all(event["dur"] > 0 and event["ts"] >= 0 for event in slices)
    assert sorted(timed) == timed
    assert [] == overlaps(slices)
    named = {(e["pid"], e["tid"]) for e in events if e["name"] == "thread_name"}
    assert {(event["pid"], event["tid"]) for event in slices} <= named
    assert {"rank 0", "rank 1"} == {
        event["args"]["name"].partition(" on ")[0]
        for event in events
        if event["name"] == "process_name"
    }


def overlaps(slices):
    """Pairs on one track of which one begins within the other and ends after it."""
    found = []
    for track in {(event["pid"], event["tid"]) for event in slices}:
        own = [event for event in slices if (event["pid"], event["tid"]) == track]
        opened = []
        for event in own:
            while opened and opened[-1]["ts"] + opened[-1]["dur"] <= event["ts"] + 1e-6:
                opened.pop()
            if opened and event["ts"] + event["dur"] > opened[-1]["ts"] + opened[-1]["dur"] + 1e-2:
                found.append((opened[-1], event))
            opened.append(event)
    return found


def test_arrows_lead_from_what_sends_to_what_waits(recorded):
    """One for each value between the ranks, each way: 4 stages, 4 microbatches, 3 steps."""
    events = recorded[0].document()["traceEvents"]
    starts = {event["id"]: event for event in events if event["ph"] == "s"}
    ends = {event["id"]: event for event in events if event["ph"] == "f"}
    slices = [event for event in events if event["ph"] == "X"]

    assert starts.keys() == ends.keys()
    assert 3 * (3 + 3) * 4 == len(starts)
    assert all(starts[each]["pid"] != ends[each]["pid"] for each in starts)
    assert all(starts[each]["ts"] <= ends[each]["ts"] for each in starts)
    assert all(is_in_a_slice(event, slices) for event in [*starts.values(), *ends.values()])


def test_stages_at_the_ends_show_no_messages_that_do_not_exist(recorded):
    """The first one receives no activations and sends no gradients; the last one the other way."""
    names = {event["name"] for event in recorded[0].document()["traceEvents"]}

    assert {"recv 1F0", "send 0F0", "recv 0B0", "send 3B0"} <= names
    assert names.isdisjoint({"recv 0F0", "send 0B0", "send 3F0", "recv 3B0"})


def is_in_a_slice(event, slices):
    return any(
        (each["pid"], each["tid"]) == (event["pid"], event["tid"])
        and each["ts"] <= event["ts"] <= each["ts"] + each["dur"]
        for each in slices
    )


def test_names_of_actions_have_the_stage_where_ranks_have_several(recorded):
    names = {event["name"] for event in recorded[0].document()["traceEvents"]}

    assert {"0F0", "2F3", "3B1"} <= names


@pytest.mark.parametrize("name", ["1f1b", "zero_bubble"])
def test_ranks_wait_as_long_as_theory_says(world, name):
    """Stages that sleep 40 ms each way; other programs take some of the rest."""
    run, expected = world.run(record, name, 1, 4, 0.04, 2, size=2, deadline=120)[0]
    replayed = run.replay()

    assert expected.bubble_fraction == pytest.approx(replayed.measured_bubble, abs=0.08)
    assert replayed.measured_seconds == pytest.approx(replayed.predicted_seconds, rel=0.1)
    assert 1 == replayed.num_steps, "the first of two does not count"
    assert "predicted" in str(replayed)


def test_a_run_is_drawn(recorded, tmp_path):
    recorded[0].plot(tmp_path / "run.png")

    assert (tmp_path / "run.png").read_bytes().startswith(b"\x89PNG")


def test_steps_that_nobody_recorded_are_not_drawn(recorded):
    with pytest.raises(OptionError) as caught:
        recorded[0].plot(step=7)

    assert ("step",) == caught.value.about
    assert (
        "step 7 of pipeline 0 cannot be drawn: it was not recorded completely; complete steps are"
        " 0, 1, 2. Pass one of these steps." == str(caught.value)
    )


def test_a_run_without_a_whole_step_is_not_replayed(recorded):
    run = recorded[0]
    with pytest.raises(OptionError) as caught:
        Run(tracks=run.tracks[:1], schedule=run.schedule, edges=run.edges).replay()

    assert (("skip",), "missing") == (caught.value.about, caught.value.kind)


def test_a_folder_that_is_not_there_is_named(recorded, tmp_path):
    with pytest.raises(OptionError) as caught:
        recorded[0].save(tmp_path / "gone" / "trace.json")

    assert ("path",) == caught.value.about
    assert isinstance(caught.value.__cause__, FileNotFoundError)


def test_the_earliest_events_make_room():
    recorder = Recorder(most_events=3)
    for microbatch in range(5):
        recorder("F", 0, microbatch, microbatch, microbatch + 1)
    track = recorder.track()

    assert [2, 3, 4] == [event.microbatch for event in track.events]
    assert 2 == track.num_lost


def test_what_is_waited_for_belongs_to_the_action_after_it():
    """Steps are told apart by actions alone; a receive comes before its action."""
    recorder = Recorder()
    for _ in range(2):
        recorder("recv", 1, 0, 0, 1)
        recorder("F", 1, 0, 1, 2)
        recorder("recv", 1, 0, 2, 3)
        recorder("B", 1, 0, 3, 4)
        recorder("reduce", 1, -1, 4, 5)
    events = recorder.track().events

    assert [0] * 5 + [1] * 5 == [event.step for event in events]
    assert ["F", "", "B", "", ""] * 2 == [event.detail for event in events]


def test_a_cleared_recorder_begins_anew():
    recorder = Recorder()
    for _ in range(2):
        recorder("F", 0, 0, 0, 1)
    recorder.clear()
    recorder("F", 0, 0, 0, 1)

    assert [0] == [event.step for event in recorder.track().events]


def test_an_event_takes_a_microsecond():
    """So a step of a thousand events is as long as without; a generous bar for a busy machine."""
    recorder, count = Recorder(), 20_000
    best = min(told(recorder, count) for _ in range(5))

    assert best / count < 10e-6


def told(recorder, count):
    begin = perf_counter()
    for number in range(count):
        recorder("F", 0, number, 0.0, 1.0, "")
    return perf_counter() - begin


def strange_clocks(rank, _size):
    """Each rank's clock is an hour ahead of that of the rank before it."""
    recorder = Recorder(
        rank=rank,
        pipeline_rank=rank,
        clock=lambda: perf_counter() + 3600.0 * rank,
        clock_name=f"host {rank}",
    )
    dist.barrier()
    now = recorder.clock()
    recorder("F", rank, 0, now, now + 1)
    schedule = make_schedule("simple", num_ranks=3, num_microbatches=1)
    edges = [Edge(value="", source=n, target=n + 1, num_bytes=0, has_gradient=True) for n in (0, 1)]
    return gather(recorder, schedule=schedule, edges=tuple(edges))


def test_clocks_of_hosts_are_compared(world):
    run = world.run(strange_clocks, size=3)[0]
    starts = [track.events[0].start for track in run.tracks]
    errors = [track.clock_error_seconds for track in run.tracks]

    assert max(starts) - min(starts) < 5, "seconds, not hours: they met at a barrier"
    assert 0 == errors[0]
    assert all(0 < error < 5 for error in errors[1:])
    assert "clock within" in json.dumps(run.document())


def test_ranks_of_one_host_share_a_clock(recorded):
    assert [0, 0] == [track.clock_error_seconds for track in recorded[0].tracks]
