# SPDX-License-Identifier: Apache-2.0
"""A lost answer does not create a job twice, and another job of the name is no success."""

import pytest
from cloudwatch import ARN, HANG_UP, REQUEST, Refusal, Time, described, in_ireland, prepared_server

from sagemaker_dist.errors import OptionError, SetupError
from sagemaker_dist.runners.sagemaker.api import is_same

pytestmark = pytest.mark.timeout(120)
THROTTLED = Refusal("ThrottlingException", "Rate exceeded")
MISSING = Refusal("ValidationException", "Requested resource not found.")
TAKEN = Refusal("ResourceInUse", "Training job names must be unique")


@pytest.fixture
def amazon(monkeypatch):
    with prepared_server(monkeypatch) as server:
        yield server


@pytest.fixture
def aws():
    with in_ireland(Time().clock) as runner:
        yield runner


def test_throttled_create_is_asked_again(aws, amazon):
    amazon.say("CreateTrainingJob", THROTTLED, THROTTLED, {"TrainingJobArn": ARN})

    assert "job" == aws.start(REQUEST)
    assert 3 == len(amazon.calls)


def test_create_whose_answer_was_lost(aws, amazon):
    """The repeated call is refused because of the first call's job, and counts as success."""
    amazon.say("CreateTrainingJob", HANG_UP, TAKEN)

    assert "job" == aws.start(REQUEST)
    assert ["CreateTrainingJob"] * 2 + ["DescribeTrainingJob"] == amazon.names()


def test_create_whose_every_answer_was_lost(aws, amazon):
    """The job counts as created if it exists, even if no answer arrived."""
    amazon.say("CreateTrainingJob", HANG_UP)

    assert "job" == aws.start(REQUEST)
    assert "DescribeTrainingJob" == amazon.names()[-1]


def test_create_of_which_nothing_is_known(aws, amazon):
    amazon.say("CreateTrainingJob", HANG_UP)
    amazon.say("DescribeTrainingJob", MISSING)
    with pytest.raises(SetupError) as raised:
        aws.start(REQUEST)

    assert "unconfirmed" == raised.value.kind


def test_name_that_is_taken(aws, amazon):
    """A refusal of the first call is an error, even if the other job has an equal request."""
    amazon.say("CreateTrainingJob", TAKEN)
    with pytest.raises(OptionError) as raised:
        aws.start(REQUEST)

    assert (("job_name",), "conflict") == (raised.value.about, raised.value.kind)


@pytest.mark.parametrize(
    "other",
    [
        described(HyperParameters={"epochs": "4"}),
        described(HyperParameters={}),
        described(ResourceConfig={**REQUEST["ResourceConfig"], "InstanceCount": 1}),
        described(AlgorithmSpecification={"TrainingInputMode": "File", "TrainingImage": "b"}),
        described(RoleArn="arn:aws:iam::123456789012:role/other"),
        described(age_seconds=3600),
    ],
    ids=["hyperparameter", "no hyperparameters", "hosts", "image", "role", "yesterday's"],
)
def test_name_of_another_job_when_an_answer_was_lost(aws, amazon, other):
    amazon.say("CreateTrainingJob", HANG_UP, TAKEN)
    amazon.say("DescribeTrainingJob", other)
    with pytest.raises(OptionError) as raised:
        aws.start(REQUEST)

    assert (("job_name",), "conflict") == (raised.value.about, raised.value.kind)


@pytest.mark.parametrize("skew_seconds", [-86_400, 86_400])
def test_wrong_clock_of_this_machine(aws, amazon, skew_seconds):
    """The age of a job is measured by AWS's clock."""
    amazon.skew_seconds = skew_seconds
    amazon.say("CreateTrainingJob", HANG_UP, TAKEN)
    amazon.say("DescribeTrainingJob", described(age_seconds=-skew_seconds))

    assert "job" == aws.start(REQUEST)


def test_groups_of_instances_are_compared():
    group = {"InstanceGroupName": "a", "InstanceType": "ml.c5.xlarge", "InstanceCount": 1}
    sent = {**REQUEST, "ResourceConfig": {"InstanceGroups": [group]}}
    more = {**sent, "ResourceConfig": {"InstanceGroups": [group, group], "VolumeSizeInGB": 1}}

    assert is_same(sent, {**sent, "ResourceConfig": {"InstanceGroups": [{**group, "x": 1}]}})
    assert not is_same(sent, more)
