# SPDX-License-Identifier: Apache-2.0
"""`sagemaker-dist describe`: what a job costs, and what spot instances saved."""

from datetime import datetime, timedelta, timezone

import pytest

from sagemaker_dist.cli.job_cost import cost_rows

BEGUN = datetime(2026, 11, 27, tzinfo=timezone.utc)
HOUR = timedelta(hours=1)


def described(kind="ml.g5.xlarge", status="InProgress", region="eu-west-1", **more):
    return {
        "TrainingJobArn": f"arn:aws:sagemaker:{region}:123456789012:training-job/job",
        "TrainingJobStatus": status,
        "ResourceConfig": {"InstanceType": kind, "InstanceCount": 4},
        "StoppingCondition": {"MaxRuntimeInSeconds": 2 * 3600 - 120},
        "TrainingStartTime": BEGUN,
        **more,
    }


def test_running_job():
    """A running job costs from its start to now, and at most until its limit and SIGTERM."""
    cost = cost_rows(described(), BEGUN + HOUR)["cost"]

    assert cost.startswith("6.28 USD so far, 12.56 USD if it runs for 7200 s")
    assert "6.28 USD/h for all hosts" in cost


def test_job_that_has_not_begun():
    """Nothing is paid before the start."""
    waiting = described()
    del waiting["TrainingStartTime"]

    assert cost_rows(waiting, BEGUN)["cost"].startswith("0.00 USD so far")


def test_ended_job_on_spot():
    """What SageMaker bills counts, and its two times give the saving."""
    times = {"TrainingTimeInSeconds": 3600, "BillableTimeInSeconds": 900}
    rows = cost_rows(described(status="Completed", EnableManagedSpotTraining=True, **times))

    assert rows["cost"].startswith("1.57 USD, 900 s billed")
    assert "saved 75 %: 900 of 3600 s billed" == rows["spot"]


def test_on_demand_has_no_saving():
    """Without spot instances there is no row for them."""
    times = {"TrainingTimeInSeconds": 3600, "BillableTimeInSeconds": 3600}

    assert {"cost"} == cost_rows(described(status="Completed", **times)).keys()


def test_price_of_the_submission_wins():
    """The price that the job was submitted with is that of all its hosts."""
    found = described(Environment={"SMDIST_USD_PER_HOUR": "10"})

    assert cost_rows(found, BEGUN + HOUR)["cost"].startswith("10.00 USD so far")


def test_groups():
    """The price of a job with instance groups is their sum."""
    groups = [
        {"InstanceGroupName": name, "InstanceType": f"ml.{name}.xlarge", "InstanceCount": 1}
        for name in ("g5", "g4dn")
    ]
    found = described(ResourceConfig={"InstanceGroups": groups})

    assert cost_rows(found, BEGUN + HOUR)["cost"].startswith("2.39 USD so far")


def test_unknown_price():
    """The row names the type and the region; no price is taken from another region."""
    assert (
        "unknown: no price of ml.g5.xlarge in us-east-1"
        in cost_rows(described(region="us-east-1"))["cost"]
    )


@pytest.mark.parametrize("kind", ["local_process", "local"])
def test_this_machine(kind):
    """A job of this machine has no row without a price."""
    assert {} == cost_rows(described(kind))
