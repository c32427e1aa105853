# SPDX-License-Identifier: Apache-2.0
"""Arguments that SageMaker would refuse after the upload are refused before it, all at once."""

from dataclasses import replace
from pathlib import Path

import pytest
from error_fields import fields_of
from sagemaker.instance_group import InstanceGroup

from sagemaker_dist.contract import DataParallel, Distribution
from sagemaker_dist.estimators import estimator_facts
from sagemaker_dist.planning import Job, construction_faults

LOSS = {"Name": "loss", "Regex": "loss=([0-9.]+)"}
C5 = "ml.c5.xlarge"


def faults(given, **changes):
    """Return the faults of an estimator's arguments."""
    job = Job(
        uses_launcher=False,
        instance_type=C5,
        terms=estimator_facts.terms(given),
        environment=estimator_facts.environment(given.get("environment")),
        output_path=given.get("output_path"),
        checkpoint_s3_uri=given.get("checkpoint_s3_uri"),
    )
    return list(construction_faults(replace(job, **changes)))


# fmt: off
# Each request has one fault: the path of the wrong option, and the kind of the fault.
WRONG = [
    ({"hyperparameters": ["lr"]}, "hyperparameters", "type"),
    ({"hyperparameters": {str(each): each for each in range(96)}}, "hyperparameters", "too_many"),
    ({"hyperparameters": {"a" * 257: 1}}, "hyperparameters." + "a" * 257, "too_long"),
    ({"hyperparameters": {"two words": 1}}, "hyperparameters.\"two words\"", "option"),
    ({"hyperparameters": {"-lr": 1}}, "hyperparameters.-lr", "option"),
    ({"hyperparameters": {"lr=1": 1}}, "hyperparameters.\"lr=1\"", "option"),
    ({"hyperparameters": {"": 1}}, "hyperparameters.\"\"", "option"),
    ({"hyperparameters": {"sagemaker_progam": "train.py"}}, "hyperparameters.sagemaker_progam",
     "reserved"),
    ({"hyperparameters": {"sagemaker_q": 1}}, "hyperparameters.sagemaker_q", "reserved"),
    ({"hyperparameters": {"x": "a" * 2499}}, "hyperparameters.x", "too_long"),
    ({"hyperparameters": {"x": Path("/data")}}, "hyperparameters.x", "type"),
    ({"hyperparameters": {"x": "a\0b"}}, "hyperparameters.x", "nul"),
    ({"hyperparameters": {"x": "\ud83d"}}, "hyperparameters.x", "surrogate"),
    ({"environment": {"A.B": "x"}}, "environment.\"A.B\"", "option"),
    ({"environment": {"A" * 513: "x"}}, "environment." + "A" * 513, "too_long"),
    ({"environment": {"A": "x" * 513}}, "environment.A", "too_long"),
    ({"environment": {f"A{each}": "x" for each in range(101)}}, "environment", "too_many"),
    ({"subnets": ["subnet-1"]}, "subnets", "missing"),
    ({"security_group_ids": ["sg-1"]}, "security_group_ids", "missing"),
    ({"subnets": "subnet-1", "security_group_ids": ["sg-1"]}, "subnets", "type"),
    ({"subnets": [], "security_group_ids": ["sg-1"]}, "subnets", "too_few"),
    ({"subnets": ["subnet-1"], "security_group_ids": [f"sg-{each}" for each in range(6)]},
     "security_group_ids", "too_many"),
    ({"subnets": [f"subnet-{each}" for each in range(17)], "security_group_ids": ["sg-1"]},
     "subnets", "too_many"),
    ({"subnets": ["sg-1"], "security_group_ids": ["sg-1"]}, "subnets[0]", "option"),
    ({"subnets": ["subnet-1"], "security_group_ids": ["sg 1"]}, "security_group_ids[0]", "option"),
    ({"subnets": ["subnet-" + "1" * 26], "security_group_ids": ["sg-1"]}, "subnets[0]", "too_long"),
    ({"subnets": ["subnet-1"], "security_group_ids": [1]}, "security_group_ids[0]", "type"),
    ({"use_spot_instances": True}, "use_spot_instances", "missing"),
    ({"use_spot_instances": True, "max_wait": 3600}, "max_wait", "conflict"),
    ({"use_spot_instances": True, "max_run": 7200, "max_wait": 3600}, "max_wait", "conflict"),
    ({"max_wait": 90000}, "max_wait", "missing"),
    ({"max_wait": 90000, "max_retry_attempts": 31}, "max_retry_attempts", "too_large"),
    ({"max_retry_attempts": 0}, "max_retry_attempts", "too_small"),
    ({"keep_alive_period_in_seconds": 21601}, "keep_alive_period_in_seconds", "too_large"),
    ({"keep_alive_period_in_seconds": -1}, "keep_alive_period_in_seconds", "too_small"),
    ({"keep_alive_period_in_seconds": 60, "use_spot_instances": True, "max_wait": 86400},
     "keep_alive_period_in_seconds", "conflict"),
    ({"max_run": 0}, "max_run", "too_small"),
    ({"max_run": 28 * 86400 + 1}, "max_run", "too_large"),
    ({"max_run": "3600"}, "max_run", "type"),
    ({"max_run": True}, "max_run", "type"),
    ({"train_max_run": 0}, "max_run", "too_small"),
    ({"volume_size": -1}, "volume_size", "too_small"),
    ({"volume_size": 1.5}, "volume_size", "type"),
    ({"instance_groups": []}, "instance_groups", "too_few"),
    ({"instance_groups": ["workers"]}, "instance_groups", "type"),
    ({"instance_groups": [InstanceGroup("a", C5, 1)], "instance_type": C5}, "instance_type",
     "conflict"),
    ({"instance_groups": [InstanceGroup("a", C5, 1), InstanceGroup("a", C5, 2)]},
     "instance_groups", "repeated"),
    ({"instance_groups": [InstanceGroup("a", "ml.c5.xlage", 1)]},
     "instance_groups[0].instance_type", "unknown"),
    ({"instance_groups": [InstanceGroup("", C5, 1)]}, "instance_groups[0].instance_group_name",
     "too_short"),
    ({"instance_groups": [InstanceGroup("a", C5, 0)]}, "instance_groups[0].instance_count",
     "too_small"),
    ({"instance_groups": [InstanceGroup(str(each), C5, 1) for each in range(6)]},
     "instance_groups", "too_many"),
    ({"tags": "team"}, "tags", "type"),
    ({"tags": [{"Key": "team"}]}, "tags", "type"),
    ({"tags": {"aws:team": "vision"}}, "tags.\"aws:team\"", "reserved"),
    ({"tags": [{"Key": "a", "Value": "1"}, {"Key": "a", "Value": "2"}]}, "tags", "repeated"),
    ({"tags": {"team": "<vision>"}}, "tags.team", "option"),
    ({"tags": {"": "vision"}}, "tags.\"\"", "too_short"),
    ({"tags": {"a" * 129: "vision"}},
     "tags.aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa",
     "too_long"),
    ({"tags": {"team": "x" * 257}}, "tags.team", "too_long"),
    ({"tags": {str(each): "x" for each in range(51)}}, "tags", "too_many"),
    ({"metric_definitions": [LOSS] * 41}, "metric_definitions", "too_many"),
    ({"metric_definitions": LOSS}, "metric_definitions", "type"),
    ({"metric_definitions": [{"Name": "loss"}]}, "metric_definitions", "type"),
    ({"metric_definitions": [{**LOSS, "Name": ""}]}, "metric_definitions[0].Name", "too_short"),
    ({"metric_definitions": [{**LOSS, "Name": "a" * 256}]}, "metric_definitions[0].Name",
     "too_long"),
    ({"metric_definitions": [{**LOSS, "Regex": "(" + "a" * 499 + ")"}]},
     "metric_definitions[0].Regex", "too_long"),
    ({"metric_definitions": [{**LOSS, "Regex": "loss=("}]}, "metric_definitions[0].Regex",
     "option"),
    ({"metric_definitions": [{**LOSS, "Regex": "loss=.*"}]}, "metric_definitions[0].Regex",
     "missing"),
    ({"role": "my role"}, "role", "option"),
    ({"role": "arn:aws:iam::1:role/training"}, "role", "option"),
    ({"role": "team/training-of-vision"}, "role", "option"),
    ({"image_uri": "https://example.com/image"}, "image_uri", "option"),
    ({"image_uri": "x" * 256}, "image_uri", "too_long"),
    ({"image_uri": "my image:1"}, "image_uri", "option"),
    ({"output_kms_key": "my key"}, "output_kms_key", "option"),
    ({"volume_kms_key": "*"}, "volume_kms_key", "option"),
    ({"output_path": "/tmp/out"}, "output_path", "relative"),
    ({"output_path": "file:///tmp/out"}, "output_path", "unsupported"),
    ({"output_path": "s3://{bucket}/out"}, "output_path", "option"),
    ({"output_path": "s3://bucket/" + "x" * 1013}, "output_path", "too_long"),
    ({"checkpoint_s3_uri": "gs://bucket/state"}, "checkpoint_s3_uri", "unsupported"),
    ({"code_location": "s3://"}, "code_location", "incomplete"),
    ({"code_location": 5}, "code_location", "type"),
    ({"input_mode": "Stream"}, "input_mode", "unknown"),
    ({"training_plan": "mine"}, "training_plan", "too_short"),
    ({"training_repository_access_mode": "vpc"}, "training_repository_access_mode", "unknown"),
    ({"training_repository_credentials_provider_arn": "arn:aws:iam::123456789012:role/x"},
     "training_repository_credentials_provider_arn", "option"),
    ({"container_entry_point": "python train.py"}, "container_entry_point", "type"),
    ({"container_entry_point": []}, "container_entry_point", "too_few"),
    ({"container_arguments": ["x" * 257]}, "container_arguments[0]", "too_long"),
    ({"container_arguments": ["a\nb"]}, "container_arguments[0]", "line_break"),
]
# fmt: on


@pytest.mark.parametrize(("given", "path", "kind"), WRONG)
def test_a_wrong_argument_is_one_fault(given, path, kind):
    """None of these faults was reported before the code was uploaded."""
    assert [(path, kind)] == fields_of(faults(given))


def test_text_of_a_wrong_argument():
    """The text has the value, the limit, and what the SDK adds."""
    (fault,) = faults({"hyperparameters": {str(each): each for each in range(96)}})

    assert str(fault) == (
        "hyperparameters has 96 entries: SageMaker allows at most 100, and the SDK adds 5. Leave"
        " some out, or pass them in a file of an input channel."
    )


def test_all_faults_are_reported_at_once():
    given = {"role": "my role", "max_run": 0, "tags": {"aws:a": "x"}, "environment": {"A.B": "x"}}

    assert [("role",), ("max_run",), ("tags", "aws:a"), ("environment", "A.B")] == [
        fault.about for fault in faults(given)
    ]


@pytest.mark.parametrize("instance_type", ["local_process", "local", "local_gpu"])
def test_jobs_of_this_machine_have_none_of_these_limits(instance_type):
    """Only SageMaker limits the length of values."""
    given = {"hyperparameters": {"x": "a" * 9999}, "environment": {"A.B": "x" * 999}}

    assert [] == faults(given, instance_type=instance_type)


def test_our_distribution_needs_a_hyperparameter_of_its_own():
    given = {"hyperparameters": {str(each): each for each in range(95)}}
    ours = Distribution(engine=DataParallel())

    assert [] == faults(given)
    assert [("hyperparameters", "too_many")] == fields_of(faults(given, distribution=ours))


def test_hyperparameters_of_the_sdk_are_not_counted_twice():
    """After a first fit, the estimator's hyperparameters contain them."""
    own = {str(each): each for each in range(95)}

    assert [] == faults({"hyperparameters": {**own, "sagemaker_region": "us-west-2"}})


@pytest.mark.parametrize(
    ("chosen", "expected"),
    [
        (["a"], []),
        ([InstanceGroup("b", C5, 1)], []),
        (["c"], [("distribution", "unknown")]),
        (["a", "b"], [("distribution", "too_many")]),
    ],
)
def test_a_distribution_runs_on_one_group(chosen, expected):
    groups = [InstanceGroup("a", C5, 1), InstanceGroup("b", C5, 1)]
    requested = Distribution(rest={"mpi": {"enabled": True}, "instance_groups": chosen})
    found = faults({"instance_groups": groups}, instance_type=None, distribution=requested)

    assert expected == fields_of(found)


@pytest.mark.parametrize("name", ["sagemaker_mpi_enabled", "mp_parameters"])
def test_hyperparameters_do_not_request_another_launcher(name):
    """The sagemaker-dist launcher would refuse them only after the instances have started."""
    given = {"hyperparameters": {name: True}}
    ours = Distribution(engine=DataParallel())
    found = faults(given, distribution=ours, uses_launcher=True)

    assert [] == faults(given)
    assert [(f"hyperparameters.{name}", "conflict")] == fields_of(found)
