# SPDX-License-Identifier: Apache-2.0
"""Prices on spot instances from an account's past jobs, with SageMaker played by a Stubber."""

from datetime import datetime, timezone
from unittest.mock import patch

import boto3
import pytest
from botocore.stub import ANY, Stubber

from sagemaker_dist.catalog import Price, prices_for, read_spot_jobs, write_prices
from sagemaker_dist.cli import main
from sagemaker_dist.errors import SetupError

P4D, G5 = "ml.p4d.24xlarge", "ml.g5.xlarge"
NOW = datetime(2026, 11, 27, tzinfo=timezone.utc)
# name, instance types, spot, TrainingTimeInSeconds, BillableTimeInSeconds
JOBS = [
    ("a", [P4D], True, 1000, 300),
    ("b", [P4D], True, 3000, 1300),
    ("on-demand", [P4D], False, 500, 500),
    ("two-types", [P4D, G5], True, 500, 100),
    ("never-trained", [G5], True, None, None),
    ("unpriced", [G5], True, 100, 50),
]


class Session:
    """boto3 session whose client is stubbed."""

    region_name = "eu-west-1"

    def __init__(self, client):
        self._client = client

    def client(self, name):
        assert "sagemaker" == name
        return self._client


@pytest.fixture
def sagemaker():
    return boto3.client(
        "sagemaker", region_name="eu-west-1", aws_access_key_id="k", aws_secret_access_key="s"
    )


def summary(name, *, ended=True):
    arn = f"arn:aws:sagemaker:eu-west-1:111122223333:training-job/{name}"
    found = {"TrainingJobName": name, "TrainingJobArn": arn, "CreationTime": NOW}
    found["TrainingJobStatus"] = "Completed" if ended else "InProgress"
    return found | ({"TrainingEndTime": NOW} if ended else {})


def description(name, types, spot, trained, billed):
    resources = {"VolumeSizeInGB": 30}
    if len(types) == 1:
        resources |= {"InstanceType": types[0], "InstanceCount": 2}
    else:
        resources["InstanceGroups"] = [
            {"InstanceType": each, "InstanceCount": 1, "InstanceGroupName": each[3:6]}
            for each in types
        ]
    found = {
        "TrainingJobName": name,
        "TrainingJobArn": summary(name)["TrainingJobArn"],
        "ModelArtifacts": {"S3ModelArtifacts": ""},
        "TrainingJobStatus": "Completed",
        "SecondaryStatus": "Completed",
        "AlgorithmSpecification": {"TrainingInputMode": "File"},
        "ResourceConfig": resources,
        "StoppingCondition": {"MaxRuntimeInSeconds": 3600},
        "CreationTime": NOW,
        "EnableManagedSpotTraining": spot,
    }
    times = {"TrainingTimeInSeconds": trained, "BillableTimeInSeconds": billed}
    return found | {key: value for key, value in times.items() if value is not None}


def play(stub, jobs, running=()):
    """Answer a list of jobs, with those that still run, and the description of each that ended."""
    every = [summary(each, ended=False) for each in running] + [summary(each[0]) for each in jobs]
    asked = {"CreationTimeAfter": ANY, "SortBy": "CreationTime", "SortOrder": "Descending"}
    stub.add_response("list_training_jobs", {"TrainingJobSummaries": every}, asked)
    for each in jobs:
        stub.add_response("describe_training_job", description(*each), {"TrainingJobName": each[0]})


def on_demand(name, region):
    """Return a price of P4D alone."""
    assert "eu-west-1" == region
    return Price(instance_type=P4D, region=region, usd_per_hour=40.0, source="a list") if (
        name == P4D
    ) else None  # fmt: skip


def test_billed_part_of_the_time_is_the_part_of_the_price(sagemaker):
    """Times are added up by type. Jobs on demand and those of several types do not count."""
    with Stubber(sagemaker) as stub:
        play(stub, JOBS, running=["now"])
        past = read_spot_jobs(Session(sagemaker), days=90, most=100)
        stub.assert_no_pending_responses()

    assert {P4D, G5} == past.by_type.keys()
    assert (2, 4000, 1600) == (
        past.by_type[P4D].num_jobs,
        past.by_type[P4D].training_seconds,
        past.by_type[P4D].billable_seconds,
    )
    assert len(JOBS) == past.num_read
    with patch("sagemaker_dist.catalog.past_spot_jobs.price_of", on_demand):
        note = past.note()
    assert ("eu-west-1", {P4D: 16.0}) == (note.region, note.spot_usd_per_hour)
    assert "2 past spot jobs" in note.source


def test_advise_finds_the_prices(sagemaker, tmp_path):
    """The file has the form of the other files of prices."""
    with Stubber(sagemaker) as stub:
        play(stub, JOBS[:2])
        past = read_spot_jobs(Session(sagemaker), days=90, most=100)
    with patch("sagemaker_dist.catalog.past_spot_jobs.price_of", on_demand):
        write_prices([past.note()], tmp_path / "spot_prices.json")

    assert 16.0 == prices_for("eu-west-1", tmp_path / "spot_prices.json").spot[P4D].usd_per_hour


def test_the_latest_jobs_alone(sagemaker):
    """No more jobs are described than the caller allows."""
    with Stubber(sagemaker) as stub:
        play(stub, JOBS)
        past = read_spot_jobs(Session(sagemaker), days=1, most=1)

    assert 1 == past.num_read


def test_refusal_names_the_permissions(sagemaker):
    """The error names the IAM actions to allow."""
    with Stubber(sagemaker) as stub:
        stub.add_client_error("list_training_jobs", "AccessDeniedException", "No.")
        with pytest.raises(SetupError) as raised:
            read_spot_jobs(Session(sagemaker), days=90, most=100)

    assert "access_denied" == raised.value.kind
    assert "sagemaker:DescribeTrainingJob" in raised.value.hint


def test_command(sagemaker, capsys, tmp_path):
    """It writes the file and prints each type; without a spot job, it says how to find some."""
    file = tmp_path / "spot.json"
    run = ["instances", "spot", "--region", "eu-west-1", "--prices", str(file)]

    opened = patch(
        "sagemaker_dist.cli.instances_command.boto_session", lambda *_: Session(sagemaker)
    )
    priced = patch("sagemaker_dist.catalog.past_spot_jobs.price_of", on_demand)
    with opened, priced, Stubber(sagemaker) as stub:
        play(stub, JOBS)
        assert 0 == main(run)
        said = capsys.readouterr().out
        play(stub, JOBS[2:3])
        assert 1 == main(run)

    assert "16 USD/h, 2 jobs of 1.1 h in all, 40 % of the time billed" in said
    assert "on-demand price unknown" in said
    assert f"{file}: 1 spot prices in eu-west-1" in " ".join(said.split())
    assert "--days" in capsys.readouterr().err


def test_no_region_is_an_error_with_a_hint(monkeypatch, tmp_path):
    """boto3's own error has no hint."""
    for name in ("AWS_REGION", "AWS_DEFAULT_REGION", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "absent"))
    with pytest.raises(SetupError) as raised:
        read_spot_jobs(boto3.Session(), days=90, most=100)

    assert "no_region" == raised.value.kind
