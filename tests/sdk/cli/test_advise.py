# SPDX-License-Identifier: Apache-2.0
"""`sagemaker-dist advise`: hours, dollars, the front and the choice, from the planner's answers."""

import json
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sagemaker_dist.catalog import prices_for
from sagemaker_dist.cli import main
from sagemaker_dist.cli.advice import (
    TrainingWork,
    advice_of,
    candidates_of,
    draw_front,
    offers_of,
    pareto_front,
)
from sagemaker_dist.cli.advice.calibrated_type import calibration_of
from sagemaker_dist.cli.advice.candidates import default_types, types_without_price
from sagemaker_dist.errors import OptionError

TYPES = ["ml.g5.48xlarge", "ml.p4d.24xlarge", "ml.p5.48xlarge"]


def answer(seconds, samples=100):
    """Return the planner's result for a step of so many seconds, 10 % up or down."""
    return {
        "samples": samples,
        "low_seconds": 0.9 * seconds,
        "step_seconds": seconds,
        "high_seconds": 1.1 * seconds,
    }


def misfit(gib):
    fields = {"what": "a rank is full", "why": "it does not fit", "hint": "Use 9 hosts"}
    return {"error": {**fields, "about": None, "kind": "memory", "least_bytes": gib * 2**30}}


def candidates(prices=None):
    return candidates_of(TYPES, [1], prices or prices_for())


def training(**limits):
    return TrainingWork(samples=360_000, base_batch=50, **limits)


def test_hours_and_dollars():
    """3,600 steps of 2 s are two hours of each epoch; dollars are hours times price and hosts."""
    few = candidates_of(["ml.g5.48xlarge"], [2], prices_for())
    (offer,) = offers_of(few, [answer(2.0)], TrainingWork(samples=359_901, epochs=3, base_batch=50))

    assert (2.0, 6.0) == (offer.epoch_hours.expected, offer.hours.expected)
    assert pytest.approx(6 * 2 * 20.36) == offer.dollars.expected
    assert pytest.approx((5.4, 6.6)) == (offer.hours.low, offer.hours.high)
    assert 2.0 == offer.learning_rate_factor
    assert offer.spot_dollars is None


def test_spot_price_of_a_file(tmp_path):
    """Spot dollars are there if the user's file has a price."""
    note = {"source": "mine", "date": "2026-11-27", "region": None, "usd_per_hour": {},
            "spot_usd_per_hour": {"ml.p4d.24xlarge": 5.0}}  # fmt: skip
    (tmp_path / "mine.json").write_text(json.dumps([note]))
    every = candidates(prices_for(file=tmp_path / "mine.json"))
    offers = offers_of(every, [answer(1.0)] * 3, training())

    assert [None, 5.0, None] == [o.spot_dollars and o.spot_dollars.expected for o in offers]


@given(st.lists(st.floats(0.01, 100), min_size=3, max_size=3))
def test_front_has_what_nothing_dominates(seconds):
    """An offer is on the front exactly if no other is as good in both and better in one."""
    offers = offers_of(candidates(), [answer(each) for each in seconds], training())
    points = {o.name: (o.hours.expected, o.dollars.expected) for o in offers}

    def is_beaten(mine):
        return any(
            other[0] <= mine[0] and other[1] <= mine[1] and other != mine
            for other in points.values()
        )

    assert {name for name, mine in points.items() if not is_beaten(mine)} == {
        each.name for each in pareto_front(offers)
    }


def test_cheapest_that_meets_the_deadline():
    """A cheaper offer that misses the deadline has its reason; a dearer one has none."""
    offers = offers_of(candidates(), [answer(10.0), answer(2.0), answer(1.0)], training(
        deadline_hours=3.0
    ))  # fmt: skip
    advice = advice_of(offers, training(deadline_hours=3.0))

    assert "1 x ml.p4d.24xlarge" == advice.choice.name
    assert [] == list(advice.reasons)  # the slow one costs more: 10 h for 204 dollars

    advice = advice_of(offers, training(deadline_hours=1.15))

    assert "1 x ml.p5.48xlarge" == advice.choice.name
    assert ["1 x ml.p4d.24xlarge"] == [each.offer.name for each in advice.reasons]
    assert "misses the deadline of 1.15 h: 2 h (1.8 to 2.2)" in advice.reasons[0].text


def test_limit_inside_the_range():
    """If no range is below the limit, an offer that may meet it is chosen, and that is said."""
    limits = training(budget_dollars=72.0)
    offers = offers_of(candidates(), [misfit(30), answer(2.0), answer(1.0)], limits)
    advice = advice_of(offers, limits)

    assert "1 x ml.p4d.24xlarge" == advice.choice.name
    assert ["no_layout"] == [each.verdict.value for each in advice.reasons]


def test_all_miss():
    """There is no choice if every range is beyond a limit."""
    limits = training(budget_dollars=1.0)
    advice = advice_of(offers_of(candidates(), [answer(9.0)] * 3, limits), limits)

    assert advice.choice is None
    assert 3 == len(advice.reasons)


def test_fits_nowhere_says_what_would():
    """The nearest cluster is named, with the memory that it lacks and the planner's hint."""
    offers = offers_of(candidates(), [misfit(30), misfit(90), misfit(80)], training())

    with pytest.raises(OptionError) as caught:
        advice_of(offers, training())

    nearest = caught.value.why.partition(" comes nearest")[0]

    assert "1 x ml.p5.48xlarge" == nearest
    assert caught.value.hint.startswith("Use 9 hosts")
    assert "memory" == caught.value.kind


def test_default_types_have_a_price():
    """One type of each GPU is compared; types of unknown price are named, and not compared."""
    prices = prices_for()

    assert {"ml.p4d.24xlarge", "ml.p5.48xlarge", "ml.g5.48xlarge"} <= set(default_types(prices))
    assert set(default_types(prices)) <= set(prices.on_demand)
    assert "ml.p4de.24xlarge" in types_without_price(prices)


def test_picture_names_the_front():
    """The picture is XML with the names of the front."""
    offers = offers_of(candidates(), [answer(20.0), answer(3.0), answer(1.0)], training())
    advice = advice_of(offers, training())
    root = ElementTree.fromstring(draw_front(advice, "a & b"))
    texts = [each.text for each in root.iter("{http://www.w3.org/2000/svg}text")]

    assert "a & b" in texts
    assert {each.name for each in advice.front} <= set(texts)


def test_labels_of_equal_dollars_do_not_cover_each_other():
    """Clusters whose points are close have their names on lines of their own."""
    every = candidates_of(["ml.p4d.24xlarge"], [1, 2, 3, 4, 5, 6], prices_for())
    answers = [answer(20.0 / each.num_hosts * 1.001**each.num_hosts) for each in every]
    advice = advice_of(offers_of(every, answers, training()), training())
    root = ElementTree.fromstring(draw_front(advice, "t"))
    texts = root.iter("{http://www.w3.org/2000/svg}text")
    places = [(float(each.get("x")), float(each.get("y"))) for each in texts if "p4d" in each.text]

    assert 6 == len(places)
    for at, (x, y) in enumerate(places):
        assert not any(abs(x - a) < 100 and abs(y - b) < 11 for a, b in places[:at])


def test_all_faults_at_once(capsys):
    """Wrong numbers are reported together, with their values."""
    status = main(
        ["advise", "model.py", "--budget=-5", "--deadline=soon", "--counts=0", "--plot=a.gif"]
    )
    said = capsys.readouterr().err

    assert 2 == status
    assert "5 faults" in said
    for each in ("--samples is missing", "'-5'", "'soon'", "'0'", "'a.gif'"):
        assert each in said


@pytest.mark.parametrize(
    ("given", "about", "why"),
    [
        (["--samples=1e400"], "samples", "from 1 to 1e+15"),
        (["--samples=1e16"], "samples", "from 1 to 1e+15"),
        (["--samples=9", "--prices=gone.json"], "prices", "it does not exist"),
        (["--samples=9", "--region=mars-1"], "region", "a region of this name"),
        (["--samples=9", "--plot=gone/front.svg"], "plot", "the folder gone does not exist"),
        (["--samples=9", "--plot=folder.svg"], "plot", "it is a folder"),
    ],
)
def test_faults_that_are_found_before_the_model_is_read(
    capsys, tmp_path, monkeypatch, given, about, why
):
    """A wrong file costs no minutes of comparison, and a missing one is not ignored."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "folder.svg").mkdir()
    status = main(["advise", "model.py", *given, "--json"])
    error = json.loads(capsys.readouterr().out)["error"]

    assert (2, about) == (status, error["about"])
    assert why in error["why"]


def test_all_faults_of_a_model_file_come_at_once(capsys, tmp_path):
    """The planner answers with several errors, which the command passes on."""
    faults = [
        {"kind": "missing", "about": name, "what": f"no {name}()", "why": "w", "hint": "h"}
        for name in ("model", "example")
    ]
    answered = json.dumps({"error": {"kind": "options", "faults": faults}})
    python = tmp_path / "python"
    python.write_text(f"#!/bin/sh\ncat <<'END'\n{answered}\nEND\nexit 2\n")
    python.chmod(0o755)
    status = main(["advise", "model.py", "--samples=9", f"--python={python}", "--json"])
    error = json.loads(capsys.readouterr().out)["error"]

    assert 2 == status
    assert ["model", "example"] == [each["about"] for each in error["faults"]]


def test_type_without_price(capsys):
    """A type whose price is unknown is refused, with the way to get prices."""
    status = main(
        ["advise", "model.py", "--samples=10", "--instance-type=ml.p4de.24xlarge", "--json"]
    )
    error = json.loads(capsys.readouterr().out)["error"]

    assert (2, "no_price") == (status, error["kind"])
    assert "instances refresh" in error["hint"]


def test_exit_status_says_that_nothing_meets_the_limits(capsys, monkeypatch):
    """The report still says why, for each cluster."""
    layout = {**answer(9.0), "layout": "1 replica", "memory_bytes": 1, "options": {}}
    found = {"results": [layout], "batch_per_replica": 1, "parameters": 10, "assumptions": []}
    monkeypatch.setattr("sagemaker_dist.cli.advise_command.forecasts_of", lambda *_, **__: found)
    status = main(["advise", "model.py", "--samples=10", f"--instance-type={TYPES[0]}",
                   "--counts=1", "--budget=0.001", "--json"])  # fmt: skip
    document = json.loads(capsys.readouterr().out)

    assert (1, None) == (status, document["choice"])
    assert 1 == len(document["reasons"])


def calibration_file(folder, device="NVIDIA A10G", count=8):
    path = folder / "speeds.json"
    path.write_text(json.dumps({"machine": {"device_name": device, "num_devices": count}}))
    return path


def test_the_measured_type_is_found_by_its_gpus(tmp_path):
    """Model and number of GPUs name the type; several such types need --calibrated-type."""
    found = calibration_of(calibration_file(tmp_path), None, candidates())

    assert "ml.g5.48xlarge" == found.instance_type
    assert calibration_of(None, None, candidates()) is None


@pytest.mark.parametrize(
    ("device", "count", "named", "fault"),
    [
        ("NVIDIA A10G", 4, None, ("calibration", "conflict")),
        ("AMD EPYC", 1, None, ("calibration", "conflict")),
        ("NVIDIA A10G", 8, "ml.p4d.24xlarge", ("calibrated_type", "conflict")),
        ("NVIDIA A10G", 8, "ml.g6.48xlarge", ("calibrated_type", "conflict")),
        (None, 1, None, ("calibration", "not_calibration")),
        (None, 0, "ml.p4d.24xlarge", ("calibrated_type", "no_effect")),
    ],
)
def test_speeds_of_other_machines_are_refused(tmp_path, device, count, named, fault):
    """Speeds count for the type that they were measured on, and for no other."""
    path = calibration_file(tmp_path, device, count) if device else tmp_path
    with pytest.raises(OptionError) as caught:
        calibration_of(path if device or count else None, named, candidates())

    assert fault == (caught.value.about[0], caught.value.kind)


def test_dominated_clusters_are_counted(capsys, monkeypatch):
    """The table has the front alone, and says how many clusters it leaves out."""
    layouts = [
        {**answer(seconds), "layout": "1 replica", "memory_bytes": 1, "options": {},
         "family": "replicas"}
        for seconds in (9.0, 90.0, 900.0)
    ]  # fmt: skip
    found = {"results": layouts, "batch_per_replica": 1, "parameters": 10, "assumptions": []}
    monkeypatch.setattr("sagemaker_dist.cli.advise_command.forecasts_of", lambda *_, **__: found)
    command = ["advise", "model.py", "--samples=10", f"--instance-type={TYPES[0]}"]

    assert 0 == main([*command, "--counts=1,2,4"])
    assert "2 clusters are not shown" in capsys.readouterr().out
