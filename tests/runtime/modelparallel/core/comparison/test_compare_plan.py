# SPDX-License-Identifier: Apache-2.0
"""Parts of a comparison and its advice, for steps whose times are written down."""

import json
from dataclasses import replace

import pytest

from smdist.modelparallel.compare.comparison_command import compare_files, main
from smdist.modelparallel.core.comparison import compare_plan, comparison_text
from smdist.modelparallel.core.cost import NodeCost
from smdist.modelparallel.core.placement import Edge
from smdist.modelparallel.core.plan import Fingerprint, Forecast, Plan, RankMemory, StageForecast
from smdist.modelparallel.core.plan_errors import PlanError
from smdist.modelparallel.core.record import Event, Track, chrome_trace, read_trace
from smdist.modelparallel.core.schedule.actions import Do
from smdist.modelparallel.core.simulate import simulate

EDGES = (Edge(value="x", source=0, target=1, num_bytes=4, has_gradient=True),)


def plan(**changes):
    """Return a plan of two stages, 1 s forward and 2 s backward, with the matching forecast."""
    made = Plan(
        model="Net", pipeline_parallel_degree=2, data_parallel_degree=1, schedule="1f1b",
        batch_size=8, num_microbatches=4, stages=(("a",), ("b",)),
        fingerprint=Fingerprint(units={}, others="", shapes=""), **changes,
    )  # fmt: skip
    stage = StageForecast(forward_seconds=1.0, backward_seconds=2.0, num_parameters=1)
    memory = RankMemory(state_bytes=60, activation_bytes=20, receive_bytes=10, workspace_bytes=10)
    forecast = Forecast(
        step_seconds=16.0, samples_per_second=0.5, bubble_fraction=0.2, reduce_seconds=1.0,
        stages=(stage, stage), memory=(memory, memory), memory_limit_bytes=None, bottleneck="a",
        source="measured", device="cpu", basis=made.basis,
    )  # fmt: skip
    return replace(made, forecast=forecast)


def tracks(of, *, speeds=(1.0, 1.0), reduce=1.0, peak=100, steps=2):
    """Return the record of steps whose stages take `speeds` times the predicted seconds."""
    costs = [
        NodeCost(forward_seconds=s, input_gradient_seconds=s, weight_gradient_seconds=s)
        for s in speeds
    ]
    timeline = simulate(of.actions, costs, edges=EDGES)
    found = []
    for rank, order in enumerate(of.actions.orders):
        events = []
        for step in range(steps):
            base, before = 100.0 * step, 0.0
            for at, action in enumerate(order):
                start, end = (times[rank][at] + base for times in (timeline.starts, timeline.ends))
                place = (action.stage, action.microbatch, step)
                events.append(event("recv", *place, base + before, start, action.do.value))
                events.append(event(action.do.value, *place, start, end))
                before = end - base
            end = base + timeline.pipeline_seconds
            events.append(event("reduce", -1, -1, step, base + before, end + reduce))
        found.append(
            Track(rank=rank, pipeline_rank=rank, replica=0, host="h", events=tuple(events),
                  peak_bytes=peak)
        )  # fmt: skip
    return found


def event(kind, stage, microbatch, step, start, end, detail=""):
    return Event(
        kind=kind, stage=stage, microbatch=microbatch, step=step, start=start, end=end,
        detail=detail,
    )  # fmt: skip


def kinds(found):
    return [(each.part, each.kind) for each in found.advice]


def test_a_run_as_predicted_holds():
    """1F1B of two equal stages and four microbatches: 12 s of work and 3 s of bubble."""
    found = compare_plan(plan(), tracks(plan()), EDGES)

    assert [16.0, 12.0, 3.0, 1.0, 100] == [pytest.approx(each.measured) for each in found.parts]
    assert [1.0] * 5 == [pytest.approx(each.ratio) for each in found.parts]
    assert [("step", "none")] == kinds(found)
    assert (1, 1) == (found.num_steps, found.num_replicas)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"speeds": (2.0, 2.0)}, ("compute", "calibrate")),
        ({"speeds": (0.5, 0.5)}, ("compute", "calibrate")),
        ({"speeds": (1.5, 0.5)}, ("bubble", "balance")),
        ({"reduce": 2.0}, ("exposed communication", "reduction")),
        ({"peak": 120}, ("memory", "memory")),
    ],
)
def test_the_part_that_differs_has_the_advice(changes, expected):
    found = compare_plan(plan(), tracks(plan(), **changes), EDGES)

    assert expected in kinds(found)


def test_slower_computation_makes_a_longer_bubble_that_needs_no_advice():
    found = compare_plan(plan(), tracks(plan(), speeds=(2.0, 2.0)), EDGES)

    assert [("compute", "calibrate")] == kinds(found)


def test_a_bubble_of_even_ranks_needs_more_microbatches():
    """Both ranks wait 8 s longer before their last action, for no message that is on its way."""
    made = plan()
    found = compare_plan(made, [delayed(track, made) for track in tracks(made)], ())

    assert [("bubble", "microbatches")] == kinds(found)
    assert "--microbatches=8" in comparison_text(found, title="t")


def delayed(track, of):
    """Return a record whose last actions, of each step, wait 8 s longer."""
    last = of.actions.orders[track.rank][-1]
    place = (last.stage, last.microbatch)
    events = []
    for each in track.events:
        is_last = (each.stage, each.microbatch) == place and last.do.value in (
            each.kind,
            each.detail,
        )
        later = 8.0 if is_last or each.kind == "reduce" else 0.0
        begin = each.start + (0.0 if each.kind == "recv" else later)
        events.append(replace(each, start=begin, end=each.end + later))
    return replace(track, events=tuple(events))


def test_a_trace_is_read_as_it_was_written():
    made = tracks(plan())
    document = json.loads(json.dumps(chrome_trace(made, EDGES)))
    read, edges = read_trace(document)

    assert EDGES == edges
    for before, after in zip(made, read, strict=True):
        assert replace(before, events=()) == replace(after, events=())
        sides = [
            sorted(
                (e.kind, e.step, e.stage, e.microbatch, round(e.start, 6), round(e.end, 6))
                for e in each.events
                if e.kind in [*Do, "reduce"]
            )
            for each in (before, after)
        ]
        assert sides[0] == sides[1]


def test_the_faults_of_both_files_come_at_once(tmp_path, capsys):
    document = plan().document()
    document["timetable"] = document.pop("schedule")
    trace = chrome_trace(tracks(plan()), EDGES)
    first = next(at for at, row in enumerate(trace["traceEvents"]) if row["ph"] == "X")
    trace["traceEvents"][first]["dur"] = "long"
    del trace["smdist"]["ranks"][0]["host"]
    (tmp_path / "plan.json").write_text(json.dumps(document))
    (tmp_path / "trace.json").write_text(json.dumps(trace))

    status = main([str(tmp_path / "plan.json"), str(tmp_path / "trace.json"), "--json"])
    faults = json.loads(capsys.readouterr().out)["error"]["faults"]

    assert 2 == status
    about = " ".join(str(each["about"]) for each in faults)
    assert all(key in about for key in ("timetable", "dur", "host"))
    assert 4 == len(faults)


@pytest.mark.parametrize(
    ("plan_text", "trace_text", "number"),
    [(None, None, 2), ("{", "[]", 2), ("{}", '{"traceEvents": []}', 2), ("7", '{"a": 1}', 2)],
)
def test_nonsense_is_refused_with_a_hint_for_each_file(tmp_path, plan_text, trace_text, number):
    paths = [tmp_path / "plan.json", tmp_path / "trace.json"]
    for path, text in zip(paths, (plan_text, trace_text), strict=True):
        if text is not None:
            path.write_text(text)
    with pytest.raises(PlanError) as caught:
        compare_files(*paths)

    assert number == len(caught.value.faults)
    assert all(each.hint for each in caught.value.faults)


def test_swapped_files_are_named(tmp_path):
    """One error, in place of one for each file."""
    plan().save(tmp_path / "plan.json")
    (tmp_path / "trace.json").write_text(json.dumps(chrome_trace(tracks(plan()), EDGES)))
    compare_files(tmp_path / "plan.json", tmp_path / "trace.json")
    with pytest.raises(PlanError) as caught:
        compare_files(tmp_path / "trace.json", tmp_path / "plan.json")

    assert (("plan",), "mismatch") == (caught.value.about, caught.value.kind)


@pytest.mark.parametrize(
    ("made", "recorded", "expected"),
    [
        (replace(plan(), forecast=None), tracks(plan()), (("plan",), "stale")),
        (replace(plan(), num_microbatches=2), tracks(plan()), (("plan",), "stale")),
        (plan(), tracks(plan())[:1], (("trace",), "mismatch")),
    ],
)
def test_a_plan_without_forecast_and_a_trace_of_another_plan_are_refused(made, recorded, expected):
    with pytest.raises(PlanError) as caught:
        compare_plan(made, recorded, EDGES)

    assert expected == (caught.value.about, caught.value.kind)


def test_a_trace_of_other_stages_is_refused():
    """Both have two stages, and the same schedule."""
    sent = Edge(value="b#0", source=0, target=1, num_bytes=4, has_gradient=True)
    with pytest.raises(PlanError) as caught:
        compare_plan(plan(), tracks(plan()), (sent,))

    assert (("trace",), "mismatch") == (caught.value.about, caught.value.kind)
    compare_plan(plan(), tracks(plan()), (replace(sent, value="a#0"),))
