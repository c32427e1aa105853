# SPDX-License-Identifier: Apache-2.0
"""A step that took what the simulator said is predicted to take just that."""

from dataclasses import replace

import pytest
from pipelines import cost

from sagemaker_dist.errors import OptionError
from smdist.modelparallel.core.cost import Link
from smdist.modelparallel.core.record import Event, Track
from smdist.modelparallel.core.schedule import make_schedule
from smdist.modelparallel.core.simulate import simulate
from smdist.modelparallel.core.simulate.replay_run import replay
from smdist.modelparallel.core.simulate.schedule_tables import chain
from smdist.modelparallel.picture.run_sheet import sheet_of_run


def tracks_of(timeline, *, steps=1, apart=1000.0):
    """What an executor would record of simulated steps: each action after a wait for it."""
    tracks = []
    for rank, order in enumerate(timeline.schedule.orders):
        events = []
        for step in range(steps):
            free = step * apart
            for place, action in enumerate(order):
                start = timeline.starts[rank][place] + step * apart
                end = timeline.ends[rank][place] + step * apart
                of = {"stage": action.stage, "microbatch": action.microbatch, "step": step}
                kind = action.do.value
                events.append(Event(kind="recv", start=free, end=start, detail=kind, **of))
                events.append(Event(kind=kind, start=start, end=end, **of))
                free = end
        events = tuple(events)
        tracks.append(Track(rank=rank, pipeline_rank=rank, replica=0, host="a", events=events))
    return tracks


@pytest.mark.parametrize("name", ["simple", "1f1b", "interleaved", "zero_bubble"])
def test_a_simulated_step_is_replayed_exactly(name):
    schedule = make_schedule(name, num_ranks=3, num_microbatches=6)
    costs = [cost(1, 2, 1), cost(2, 2, 3), cost(1, 1, 1)]
    timeline = simulate(schedule, costs, link=lambda *_: Link(latency_seconds=0.25))
    found = replay(schedule, chain(3), tracks_of(timeline, steps=3))

    assert timeline.pipeline_seconds == pytest.approx(found.measured_seconds)
    assert timeline.pipeline_seconds == pytest.approx(found.predicted_seconds)
    assert found.predicted_idle == pytest.approx(found.measured_idle)
    assert 2 == found.num_steps, "the first of three does not count"


def test_several_stages_on_a_rank_are_replayed():
    schedule = make_schedule("interleaved_1f1b", num_ranks=2, num_microbatches=4, virtual_stages=2)
    timeline = simulate(schedule, [cost(1, 1, 1), cost(2, 1, 1), cost(1, 1, 1), cost(1, 3, 1)])
    found = replay(schedule, chain(4), tracks_of(timeline))

    assert timeline.pipeline_seconds == pytest.approx(found.predicted_seconds)
    assert 1 == found.num_steps


def test_the_table_has_a_line_for_each_rank():
    schedule = make_schedule("1f1b", num_ranks=2, num_microbatches=2)
    found = replay(schedule, chain(2), tracks_of(simulate(schedule, [cost(), cost()])))
    lines = str(found).splitlines()

    assert [
        "rank 0 waits       33.3%       33.3%",
        "rank 1 waits       33.3%       33.3%",
    ] == lines[3:5]


def of_replicas(timeline, *, steps):
    """Two replicas, of which the second takes a quarter longer."""
    tracks = tracks_of(timeline, steps=steps)
    slower = [
        replace(event, start=event.start * 1.25, end=event.end * 1.25)
        for track in tracks
        for event in track.events
    ]
    size = len(tracks[0].events)
    second = [
        replace(track, rank=2 + number, replica=1, events=tuple(slower[number * size :][:size]))
        for number, track in enumerate(tracks)
    ]
    return [*tracks, *second]


def test_a_step_that_replicas_run_is_one_step():
    """Seconds are the mean over replicas, and it is said of how many."""
    schedule = make_schedule("1f1b", num_ranks=2, num_microbatches=2)
    timeline = simulate(schedule, [cost(), cost()])
    found = replay(schedule, chain(2), of_replicas(timeline, steps=1))

    assert (1, 2) == (found.num_steps, found.num_replicas)
    assert str(found).startswith("1 step of 2 replicas, schedule 1f1b: predicted")
    assert timeline.pipeline_seconds * 1.125 == pytest.approx(found.measured_seconds)


@pytest.mark.parametrize(("replica", "factor"), [(0, 1.0), (1, 1.25)])
def test_a_drawing_says_which_replica_it_is_of_and_how_long_its_own_step_took(replica, factor):
    """As its axis has it; the mean is told apart from that."""
    schedule = make_schedule("1f1b", num_ranks=2, num_microbatches=2)
    timeline = simulate(schedule, [cost(), cost()])
    tracks = of_replicas(timeline, steps=1)
    replayed = replay(schedule, chain(2), tracks)
    sheet = sheet_of_run(schedule, tracks, replayed, replica=replica)
    seconds = timeline.pipeline_seconds

    assert sheet.title.endswith(f"microbatches: replica {replica} of 2, step 0")
    assert sheet.subtitle.startswith(
        f"this step took {seconds * factor:.3g} s; mean of 1 step of 2 replicas:"
        f" {seconds * 1.125:.3g} s, ranks wait"
    )
    assert seconds * factor == pytest.approx(sheet.panels[0].end)


def test_skipped_steps_are_reported():
    schedule = make_schedule("1f1b", num_ranks=2, num_microbatches=2)
    tracks = tracks_of(simulate(schedule, [cost(), cost()]), steps=2)
    with pytest.raises(OptionError) as error:
        replay(schedule, chain(2), tracks, skip=2)

    assert (("skip",), "missing") == (error.value.about, error.value.kind)
