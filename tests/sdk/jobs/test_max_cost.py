# SPDX-License-Identifier: Apache-2.0
"""TrainingJob with max_cost: its request, its note for the user, and what is refused."""

import boto3
import pytest
from error_fields import fields_raised

from sagemaker_dist import DataParallel, TrainingJob


@pytest.fixture
def job(tmp_path):
    """Return a function that builds a job whose request needs no call of AWS."""
    script = tmp_path / "train.py"
    script.touch()

    def build(**changes):
        arguments = {
            "entry_point": script,
            "role": "arn:aws:iam::123456789012:role/training",
            "instance_type": "ml.c5.9xlarge",
            "instance_count": 2,
            "image_uri": "123456789012.dkr.ecr.us-west-2.amazonaws.com/sagemaker-dist:0.1.0-torch",
            "output_path": "s3://bucket/out",
            "session": boto3.Session("testing", "testing", region_name="us-west-2"),
            "distribution": DataParallel(),
            "job_name": "job",
        }
        return TrainingJob(**{**arguments, **changes})

    return build


def test_limit_and_price(job):
    """MaxRuntimeInSeconds is what max_cost pays for; ranks know the price; no warning is due."""
    priced = job(max_cost=10, price_per_hour=2.0)
    request = priced.request()

    assert 10 * 3600 // 4 - 120 - 300 == request["StoppingCondition"]["MaxRuntimeInSeconds"]
    assert "4" == request["Environment"]["SMDIST_USD_PER_HOUR"]
    assert "MaxRuntimeInSeconds=8580" in priced.cost_limit
    assert not any("max_cost" in text for text in priced.warnings())
    assert "" == job().cost_limit


def test_without_max_cost(job):
    """Without max_cost, the request has neither a price nor another time limit."""
    request = job().request()

    assert 86400 == request["StoppingCondition"]["MaxRuntimeInSeconds"]
    assert "Environment" not in request


def test_spot(job):
    """max_wait is compared with the limit that follows from max_cost."""
    spot = {"use_spot_instances": True, "max_cost": 10, "price_per_hour": 2.0}
    request = job(max_wait=8580, **spot).request()

    assert {"MaxRuntimeInSeconds": 8580, "MaxWaitTimeInSeconds": 8580} == request[
        "StoppingCondition"
    ]
    assert [("max_wait", "conflict")] == fields_raised(lambda: job(max_wait=8579, **spot))


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"max_cost": 10}, [("max_cost", "unknown_price")]),
        ({"max_cost": 10, "instance_type": "local_process"}, [("max_cost", "unknown_price")]),
        (
            {"max_cost": "much", "price_per_hour": 1, "max_wait": 1},
            [("max_cost", "range"), ("max_wait", "missing")],
        ),
        ({"price_per_hour": 1}, [("price_per_hour", "no_effect")]),
    ],
)
def test_faults(job, changes, expected):
    """An unknown price and nonsense are faults, together with the others of the job."""
    if changes.get("instance_type"):
        changes = {**changes, "output_path": None}

    assert expected == fields_raised(lambda: job(**changes))


def test_price_of_a_type_that_does_not_exist(job):
    """The unknown price only follows from the unknown type, which alone is reported."""
    assert [("instance_type", "unknown")] == fields_raised(
        lambda: job(max_cost=10, instance_type="ml.c5.9xlrge")
    )
