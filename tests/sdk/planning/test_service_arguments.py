# SPDX-License-Identifier: Apache-2.0
"""Arguments that SageMaker would refuse after the upload are refused before it, all at once."""

from dataclasses import replace
from pathlib import Path

import pytest
from sagemaker.instance_group import InstanceGroup

from sagemaker_dist.contract import DataParallel, Distribution
from sagemaker_dist.errors import dotted
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
# Each request has one fault: the path of the wrong option.
WRONG = [
    ({"hyperparameters": ["lr"]}, "hyperparameters"),
    ({"hyperparameters": {str(each): each for each in range(96)}}, "hyperparameters"),
    ({"hyperparameters": {"a" * 257: 1}}, "hyperparameters." + "a" * 257),
    ({"hyperparameters": {"two words": 1}}, "hyperparameters.\"two words\""),
    ({"hyperparameters": {"-lr": 1}}, "hyperparameters.-lr"),
    ({"hyperparameters": {"lr=1": 1}}, "hyperparameters.\"lr=1\""),
    ({"hyperparameters": {"": 1}}, "hyperparameters.\"\""),
    ({"hyperparameters": {"sagemaker_progam": "train.py"}}, "hyperparameters.sagemaker_progam"),
    ({"hyperparameters": {"sagemaker_q": 1}}, "hyperparameters.sagemaker_q"),
    ({"hyperparameters": {"x": "a" * 2499}}, "hyperparameters.x"),
    ({"hyperparameters": {"x": Path("/data")}}, "hyperparameters.x"),
    ({"environment": {"A.B": "x"}}, "environment.\"A.B\""),
    ({"environment": {"A" * 513: "x"}}, "environment." + "A" * 513),
    ({"environment": {"A": "x" * 513}}, "environment.A"),
    ({"environment": {f"A{each}": "x" for each in range(101)}}, "environment"),
    ({"subnets": ["subnet-1"]}, "subnets"),
    ({"security_group_ids": ["sg-1"]}, "security_group_ids"),
    ({"subnets": "subnet-1", "security_group_ids": ["sg-1"]}, "subnets"),
    ({"subnets": [], "security_group_ids": ["sg-1"]}, "subnets"),
    ({"subnets": ["subnet-1"], "security_group_ids": [f"sg-{each}" for each in range(6)]},
     "security_group_ids"),
    ({"subnets": [f"subnet-{each}" for each in range(17)], "security_group_ids": ["sg-1"]},
     "subnets"),
    ({"subnets": ["sg-1"], "security_group_ids": ["sg-1"]}, "subnets[0]"),
    ({"subnets": ["subnet-1"], "security_group_ids": ["sg 1"]}, "security_group_ids[0]"),
    ({"subnets": ["subnet-" + "1" * 26], "security_group_ids": ["sg-1"]}, "subnets[0]"),
    ({"subnets": ["subnet-1"], "security_group_ids": [1]}, "security_group_ids[0]"),
    ({"use_spot_instances": True}, "use_spot_instances"),
    ({"use_spot_instances": True, "max_wait": 3600}, "max_wait"),
    ({"use_spot_instances": True, "max_run": 7200, "max_wait": 3600}, "max_wait"),
    ({"max_wait": 90000}, "max_wait"),
    ({"max_wait": 90000, "max_retry_attempts": 31}, "max_retry_attempts"),
    ({"max_retry_attempts": 0}, "max_retry_attempts"),
    ({"keep_alive_period_in_seconds": 21601}, "keep_alive_period_in_seconds"),
    ({"keep_alive_period_in_seconds": -1}, "keep_alive_period_in_seconds"),
    ({"keep_alive_period_in_seconds": 60, "use_spot_instances": True, "max_wait": 86400},
     "keep_alive_period_in_seconds"),
    ({"max_run": 0}, "max_run"),
    ({"max_run": 28 * 86400 + 1}, "max_run"),
    ({"max_run": "3600"}, "max_run"),
    ({"max_run": True}, "max_run"),
    ({"train_max_run": 0}, "max_run"),
    ({"volume_size": -1}, "volume_size"),
    ({"volume_size": 1.5}, "volume_size"),
    ({"instance_groups": []}, "instance_groups"),
    ({"instance_groups": ["workers"]}, "instance_groups"),
    ({"instance_groups": [InstanceGroup("a", C5, 1)], "instance_type": C5}, "instance_type"),
    ({"instance_groups": [InstanceGroup("a", C5, 1), InstanceGroup("a", C5, 2)]},
     "instance_groups"),
    ({"instance_groups": [InstanceGroup("a", "ml.c5.xlage", 1)]},
     "instance_groups[0].instance_type"),
    ({"instance_groups": [InstanceGroup("", C5, 1)]}, "instance_groups[0].instance_group_name"),
    ({"instance_groups": [InstanceGroup("a", C5, 0)]}, "instance_groups[0].instance_count"),
    ({"instance_groups": [InstanceGroup(str(each), C5, 1) for each in range(6)]},
     "instance_groups"),
    ({"tags": "team"}, "tags"),
    ({"tags": [{"Key": "team"}]}, "tags"),
    ({"tags": {"aws:team": "vision"}}, "tags.\"aws:team\""),
    ({"tags": [{"Key": "a", "Value": "1"}, {"Key": "a", "Value": "2"}]}, "tags"),
    ({"tags": {"team": "<vision>"}}, "tags.team"),
    ({"tags": {"": "vision"}}, "tags.\"\""),
    ({"tags": {"a" * 129: "vision"}},
     "tags.aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"),
    ({"tags": {"team": "x" * 257}}, "tags.team"),
    ({"tags": {str(each): "x" for each in range(51)}}, "tags"),
    ({"metric_definitions": [LOSS] * 41}, "metric_definitions"),
    ({"metric_definitions": LOSS}, "metric_definitions"),
    ({"metric_definitions": [{"Name": "loss"}]}, "metric_definitions"),
    ({"metric_definitions": [{**LOSS, "Name": ""}]}, "metric_definitions[0].Name"),
    ({"metric_definitions": [{**LOSS, "Name": "a" * 256}]}, "metric_definitions[0].Name"),
    ({"metric_definitions": [{**LOSS, "Regex": "(" + "a" * 499 + ")"}]},
     "metric_definitions[0].Regex"),
    ({"metric_definitions": [{**LOSS, "Regex": "loss=("}]}, "metric_definitions[0].Regex"),
    ({"metric_definitions": [{**LOSS, "Regex": "loss=.*"}]}, "metric_definitions[0].Regex"),
    ({"role": "my role"}, "role"),
    ({"role": "arn:aws:iam::1:role/training"}, "role"),
    ({"role": "team/training-of-vision"}, "role"),
    ({"image_uri": "https://example.com/image"}, "image_uri"),
    ({"image_uri": "x" * 256}, "image_uri"),
    ({"image_uri": "my image:1"}, "image_uri"),
    ({"output_kms_key": "my key"}, "output_kms_key"),
    ({"volume_kms_key": "*"}, "volume_kms_key"),
    ({"output_path": "/tmp/out"}, "output_path"),
    ({"output_path": "file:///tmp/out"}, "output_path"),
    ({"output_path": "s3://{bucket}/out"}, "output_path"),
    ({"output_path": "s3://bucket/" + "x" * 1013}, "output_path"),
    ({"checkpoint_s3_uri": "gs://bucket/state"}, "checkpoint_s3_uri"),
    ({"code_location": "s3://"}, "code_location"),
    ({"code_location": 5}, "code_location"),
    ({"input_mode": "Stream"}, "input_mode"),
    ({"training_plan": "mine"}, "training_plan"),
    ({"training_repository_access_mode": "vpc"}, "training_repository_access_mode"),
    ({"training_repository_credentials_provider_arn": "arn:aws:iam::123456789012:role/x"},
     "training_repository_credentials_provider_arn"),
    ({"container_entry_point": "python train.py"}, "container_entry_point"),
    ({"container_entry_point": []}, "container_entry_point"),
    ({"container_arguments": ["x" * 257]}, "container_arguments[0]"),
    ({"container_arguments": ["a\nb"]}, "container_arguments[0]"),
]
# One message of each check, in full.
TEXTS = [
    ({"hyperparameters": ["lr"]},
     "hyperparameters is of type list: it must be a dict of names and values. Pass a dict"
     " such as {'lr': 0.1}."),
    ({"hyperparameters": {str(each): each for each in range(96)}},
     "hyperparameters has 96 entries: SageMaker allows at most 100, and the SDK adds 5."
     " Leave some out, or pass them in a file of an input channel."),
    ({"hyperparameters": {"a" * 257: 1}},
     "a name of hyperparameters has 257 characters: SageMaker allows at most 256. Shorten it."),
    ({"hyperparameters": {"two words": 1}},
     "hyperparameters has the name 'two words': the script gets it as --name, so whitespace,"
     " '=' and a leading '-' are not allowed. Correct the name."),
    ({"hyperparameters": {"x": "a" * 2499}},
     "hyperparameters['x'] has 2501 characters as JSON: SageMaker allows at most 2500. Pass"
     " it in a file of source_dir or of an input channel."),
    ({"environment": {"A": "x" * 513}},
     "environment['A'] has 513 characters: SageMaker allows at most 512. Pass it as a"
     " hyperparameter, or in a file of source_dir."),
    ({"environment": {f"A{each}": "x" for each in range(101)}},
     "environment has 101 entries: SageMaker allows at most 100. Leave some of them out."),
    ({"subnets": ["subnet-1"]},
     "subnets is set without security_group_ids: a VPC configuration needs subnets and"
     " security groups. Pass security_group_ids too, or leave subnets out."),
    ({"use_spot_instances": True},
     "use_spot_instances is set without max_wait: SageMaker needs the longest time for"
     " waiting for spot instances and running. Pass max_wait, in seconds, of at least max_run."),
    ({"max_wait": 90000, "max_retry_attempts": 31},
     "max_retry_attempts is 31: the maximum is 30. Pass at most 30."),
    ({"keep_alive_period_in_seconds": 60, "use_spot_instances": True, "max_wait": 86400},
     "keep_alive_period_in_seconds is 60 with use_spot_instances: SageMaker has no warm"
     " pools of spot instances. Leave one of them out."),
    ({"instance_groups": ["workers"]},
     "instance_groups is ['workers']: it is not a list of InstanceGroup. Pass a list of"
     " InstanceGroup."),
    ({"instance_groups": [InstanceGroup("a", C5, 1), InstanceGroup("a", C5, 2)]},
     "instance_groups has 2 groups named 'a': each group needs a different name. Rename one"
     " of them."),
    ({"instance_groups": [InstanceGroup("a", "ml.c5.xlage", 1)]},
     "the instance_type of instance_groups[0] is 'ml.c5.xlage': SageMaker training has no"
     " such instance type. Did you mean 'ml.c5.xlarge'?"),
    ({"tags": "team"},
     "tags is 'team': it is neither a dict nor a list of {'Key': ..., 'Value': ...}. Pass a"
     " dict such as {'team': 'vision'}."),
    ({"tags": {"aws:team": "vision"}},
     "tags[0]['Key'] is 'aws:team': keys that begin with aws: are reserved for AWS. Pass"
     " another key."),
    ({"metric_definitions": LOSS},
     "metric_definitions is {'Name': 'loss', 'Regex': 'loss=([0-9.]+)'}: it is not a list of"
     " {'Name': ..., 'Regex': ...}. Pass a list such as [{'Name': 'loss', 'Regex':"
     " 'loss=([0-9.]+)'}]."),
    ({"metric_definitions": [{**LOSS, "Regex": "loss=("}]},
     "metric_definitions[0]['Regex'] is 'loss=(': it is not a regular expression (missing ),"
     " unterminated subpattern at position 5). Correct the expression."),
    ({"role": "my role"},
     "role is 'my role': the name of a role consists of 1 to 64 letters, digits and any of"
     " _+=,.@-. Pass the name of a role, or its ARN such as"
     " 'arn:aws:iam::123456789012:role/training'."),
    ({"image_uri": "https://example.com/image"},
     "image_uri is 'https://example.com/image': the name of an image has neither a scheme"
     " nor spaces. Pass registry/repository:tag."),
    ({"output_path": "/tmp/out"},
     "output_path is '/tmp/out': it is a path, and an S3 URI is needed. Pass s3:// followed"
     " by a bucket and a prefix."),
    ({"output_path": "s3://{bucket}/out"},
     "output_path is 's3://{bucket}/out': '{bucket}' is not a bucket name. Pass 3 to 63"
     " lower-case letters, digits, '.' and '-'."),
    ({"container_entry_point": "python train.py"},
     "container_entry_point is 'python train.py': it is not a list. Pass ['python train.py']."),
]
# fmt: on


@pytest.mark.parametrize(("given", "path"), WRONG)
def test_a_wrong_argument_is_one_fault(given, path):
    """None of these faults was reported before the code was uploaded."""
    assert [path] == [dotted(fault.about) for fault in faults(given)]


@pytest.mark.parametrize(("given", "text"), TEXTS)
def test_messages_of_wrong_arguments(given, text):
    assert [text] == [str(fault) for fault in faults(given)]


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
    (fault,) = faults(given, distribution=ours)

    assert ("hyperparameters",) == fault.about
    assert "the SDK adds 6" in fault.why


def test_hyperparameters_of_the_sdk_are_not_counted_twice():
    """After a first fit, the estimator's hyperparameters contain them."""
    own = {str(each): each for each in range(95)}

    assert [] == faults({"hyperparameters": {**own, "sagemaker_region": "us-west-2"}})


@pytest.mark.parametrize(
    ("chosen", "why"),
    [
        (["a"], None),
        ([InstanceGroup("b", C5, 1)], None),
        (["c"], "the job has no group 'c'"),
        (["a", "b"], "a distribution runs on exactly one group"),
    ],
)
def test_a_distribution_runs_on_one_group(chosen, why):
    groups = [InstanceGroup("a", C5, 1), InstanceGroup("b", C5, 1)]
    requested = Distribution(rest={"mpi": {"enabled": True}, "instance_groups": chosen})
    found = faults({"instance_groups": groups}, instance_type=None, distribution=requested)

    assert ([] if why is None else [(("distribution",), why)]) == [
        (fault.about, fault.why) for fault in found
    ]


@pytest.mark.parametrize("name", ["sagemaker_mpi_enabled", "mp_parameters"])
def test_hyperparameters_do_not_request_another_launcher(name):
    """The sagemaker-dist launcher would refuse them only after the instances have started."""
    given = {"hyperparameters": {name: True}}
    ours = Distribution(engine=DataParallel())
    (fault,) = faults(given, distribution=ours, uses_launcher=True)

    assert [] == faults(given)
    assert ("hyperparameters", name) == fault.about
