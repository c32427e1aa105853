# SPDX-License-Identifier: Apache-2.0
"""Arguments that SageMaker would refuse after the upload are refused before it, all at once."""

from dataclasses import replace
from pathlib import Path

import pytest
from sagemaker.instance_group import InstanceGroup

from sagemaker_dist.contract import DataParallel, Distribution
from sagemaker_dist.estimators import estimator_facts
from sagemaker_dist.planning import Job, construction_faults

LOSS = {"Name": "loss", "Regex": "loss=([0-9.]+)"}
C5 = "ml.c5.xlarge"


def faults(given, **changes):
    """What is wrong with the arguments of an estimator of SageMaker, in sentences."""
    job = Job(
        uses_launcher=False,
        instance_type=C5,
        terms=estimator_facts.terms(given),
        environment=estimator_facts.environment(given.get("environment")),
        output_path=given.get("output_path"),
        checkpoint_s3_uri=given.get("checkpoint_s3_uri"),
    )
    return [str(fault) for fault in construction_faults(replace(job, **changes))]


# fmt: off
WRONG = [
    ({"hyperparameters": ["lr"]},
     "hyperparameters is a list: it maps names to values. Pass a dict such as {'lr': 0.1}."),
    ({"hyperparameters": {str(each): each for each in range(96)}},
     "hyperparameters has 96 entries: SageMaker takes at most 100, and the SDK needs 5 of"
     " them. Leave some out, or pass a file of them as a channel."),
    ({"hyperparameters": {"a" * 257: 1}},
     "a name of hyperparameters has 257 characters: SageMaker takes at most 256. Shorten it."),
    ({"hyperparameters": {"two words": 1}},
     "hyperparameters has the name 'two words': the script gets it as --name, so it has no"
     " whitespace, no '=' and no leading '-'. Correct the name."),
    ({"hyperparameters": {"-lr": 1}},
     "hyperparameters has the name '-lr': the script gets it as --name, so it has no"
     " whitespace, no '=' and no leading '-'. Correct the name."),
    ({"hyperparameters": {"lr=1": 1}},
     "hyperparameters has the name 'lr=1': the script gets it as --name, so it has no"
     " whitespace, no '=' and no leading '-'. Correct the name."),
    ({"hyperparameters": {"": 1}},
     "hyperparameters has the name '': the script gets it as --name, so it has no whitespace,"
     " no '=' and no leading '-'. Correct the name."),
    ({"hyperparameters": {"sagemaker_progam": "train.py"}},
     "hyperparameters has the name 'sagemaker_progam': names that begin with sagemaker_ are"
     " not passed to scripts. Did you mean 'sagemaker_program'?"),
    ({"hyperparameters": {"sagemaker_q": 1}},
     "hyperparameters has the name 'sagemaker_q': names that begin with sagemaker_ are not"
     " passed to scripts. Call it 'q'."),
    ({"hyperparameters": {"x": "a" * 2499}},
     "hyperparameters['x'] has 2501 characters as JSON: SageMaker takes at most 2500. Pass it "
     "in a file of source_dir or in a channel."),
    ({"hyperparameters": {"x": Path("/data")}},
     "hyperparameters['x'] is PosixPath('/data'): the SDK cannot write it as JSON (Object of "
     "type PosixPath is not JSON serializable). Pass numbers, text, and lists or dicts of them."),
    ({"environment": {"A.B": "x"}},
     "a name of environment is 'A.B': SageMaker needs a match of [a-zA-Z_][a-zA-Z0-9_]*. Pass"
     " letters, digits and '_', without a leading digit."),
    ({"environment": {"A" * 513: "x"}},
     "a name of environment has 513 characters: SageMaker takes at most 512. Shorten it."),
    ({"environment": {"A": "x" * 513}},
     "environment['A'] has 513 characters: SageMaker takes at most 512. Pass it as a "
     "hyperparameter, or in a file of source_dir."),
    ({"environment": {f"A{each}": "x" for each in range(101)}},
     "environment has 101 entries: SageMaker takes at most 100. Leave some out."),
    ({"subnets": ["subnet-1"]},
     "subnets is set without security_group_ids: a VPC configuration needs both. Pass"
     " security_group_ids too, or leave subnets out."),
    ({"security_group_ids": ["sg-1"]},
     "security_group_ids is set without subnets: a VPC configuration needs both. Pass subnets"
     " too, or leave security_group_ids out."),
    ({"subnets": "subnet-1", "security_group_ids": ["sg-1"]},
     "subnets is 'subnet-1': it is not a list. Pass ['subnet-1']."),
    ({"subnets": [], "security_group_ids": ["sg-1"]},
     "subnets has 0 entries: SageMaker needs at least 1. Add one, or leave subnets out."),
    ({"subnets": ["subnet-1"], "security_group_ids": [f"sg-{each}" for each in range(6)]},
     "security_group_ids has 6 entries: SageMaker takes at most 5. Leave some out."),
    ({"subnets": [f"subnet-{each}" for each in range(17)], "security_group_ids": ["sg-1"]},
     "subnets has 17 entries: SageMaker takes at most 16. Leave some out."),
    ({"subnets": ["sg-1"], "security_group_ids": ["sg-1"]},
     "subnets[0] is 'sg-1': such ids begin with subnet-. Pass an id such as 'subnet-0a1b2c3d'."),
    ({"subnets": ["subnet-1"], "security_group_ids": ["sg 1"]},
     "security_group_ids[0] is 'sg 1': SageMaker needs a match of [-0-9a-zA-Z]+. Pass an id"
     " such as 'sg-0a1b2c3d'."),
    ({"subnets": ["subnet-" + "1" * 26], "security_group_ids": ["sg-1"]},
     "subnets[0] has 33 characters: SageMaker takes at most 32. Shorten it."),
    ({"subnets": ["subnet-1"], "security_group_ids": [1]},
     "security_group_ids[0] is 1: it is not a str. Pass a str."),
    ({"use_spot_instances": True},
     "use_spot_instances is set without max_wait: SageMaker needs the longest time that the"
     " job may wait for them and run. Pass max_wait, in seconds, of at least max_run."),
    ({"use_spot_instances": True, "max_wait": 3600},
     "max_wait is 3600 and max_run is 86400: max_wait includes the time of the run. Pass"
     " max_wait of at least 86400."),
    ({"use_spot_instances": True, "max_run": 7200, "max_wait": 3600},
     "max_wait is 3600 and max_run is 7200: max_wait includes the time of the run. Pass"
     " max_wait of at least 7200."),
    ({"max_wait": 90000},
     "max_wait is set without use_spot_instances: only jobs on spot instances, or with"
     " retries, can wait. Pass use_spot_instances=True, or leave max_wait out."),
    ({"max_wait": 90000, "max_retry_attempts": 31},
     "max_retry_attempts is 31: the maximum is 30. Pass at most 30."),
    ({"max_retry_attempts": 0},
     "max_retry_attempts is 0: the minimum is 1. Pass at least 1."),
    ({"keep_alive_period_in_seconds": 21601},
     "keep_alive_period_in_seconds is 21601: the maximum is 21600. Pass at most 21600."),
    ({"keep_alive_period_in_seconds": -1},
     "keep_alive_period_in_seconds is -1: the minimum is 0. Pass at least 0."),
    ({"keep_alive_period_in_seconds": 60, "use_spot_instances": True, "max_wait": 86400},
     "keep_alive_period_in_seconds is 60 with use_spot_instances: SageMaker keeps no spot "
     "instances warm. Leave one of them out."),
    ({"max_run": 0},
     "max_run is 0: the minimum is 1. Pass at least 1."),
    ({"max_run": 28 * 86400 + 1},
     "max_run is 2419201: the maximum is 2419200. Pass at most 2419200."),
    ({"max_run": "3600"},
     "max_run is '3600': it is not an integer. Pass an int."),
    ({"max_run": True},
     "max_run is True: it is not an integer. Pass an int."),
    ({"train_max_run": 0},
     "max_run is 0: the minimum is 1. Pass at least 1."),
    ({"volume_size": -1},
     "volume_size is -1: the minimum is 0. Pass at least 0."),
    ({"volume_size": 1.5},
     "volume_size is 1.5: it is not an integer. Pass an int."),
    ({"instance_groups": []},
     "instance_groups has 0 entries: SageMaker needs at least 1. Add one, or leave"
     " instance_groups out."),
    ({"instance_groups": ["workers"]},
     "instance_groups is ['workers']: it is not a list of InstanceGroup. Pass a list of"
     " InstanceGroup."),
    ({"instance_groups": [InstanceGroup("a", C5, 1)], "instance_type": C5},
     "instance_type is set with instance_groups: each group has its own. Leave instance_type "
     "out, or leave instance_groups out."),
    ({"instance_groups": [InstanceGroup("a", C5, 1), InstanceGroup("a", C5, 2)]},
     "instance_groups has 2 groups named 'a': names must be unique. Rename one of them."),
    ({"instance_groups": [InstanceGroup("a", "ml.c5.xlage", 1)]},
     "the instance_type of instance_groups[0] is 'ml.c5.xlage': SageMaker training has no such "
     "instance type. Did you mean 'ml.c5.xlarge'?"),
    ({"instance_groups": [InstanceGroup("", C5, 1)]},
     "the name of instance_groups[0] is '': SageMaker needs at least one character. Pass a name."),
    ({"instance_groups": [InstanceGroup("a", C5, 0)]},
     "the instance_count of instance_groups[0] is 0: the minimum is 1. Pass at least 1."),
    ({"instance_groups": [InstanceGroup(str(each), C5, 1) for each in range(6)]},
     "instance_groups has 6 entries: SageMaker takes at most 5. Leave some out."),
    ({"tags": "team"},
     "tags is 'team': it is neither a dict nor a list of {'Key': ..., 'Value': ...}. Pass a "
     "dict such as {'team': 'vision'}."),
    ({"tags": [{"Key": "team"}]},
     "tags is [{'Key': 'team'}]: it is neither a dict nor a list of {'Key': ..., 'Value': ...}. "
     "Pass a dict such as {'team': 'vision'}."),
    ({"tags": {"aws:team": "vision"}},
     "tags[0]['Key'] is 'aws:team': keys that begin with aws: are reserved. Pass another key."),
    ({"tags": [{"Key": "a", "Value": "1"}, {"Key": "a", "Value": "2"}]},
     "tags has the key 'a' 2 times: keys must be unique. Keep one of them."),
    ({"tags": {"team": "<vision>"}},
     "tags[0]['Value'] is '<vision>': SageMaker needs a match of ([\\w\\s\\w_.:/=+\\-@]*)."
     " Pass letters, digits, spaces and any of _.:/=+-@."),
    ({"tags": {"": "vision"}},
     "tags[0]['Key'] is '': SageMaker needs at least one character. Pass letters, digits,"
     " spaces and any of _.:/=+-@."),
    ({"tags": {"a" * 129: "vision"}},
     "tags[0]['Key'] has 129 characters: SageMaker takes at most 128. Shorten it."),
    ({"tags": {"team": "x" * 257}},
     "tags[0]['Value'] has 257 characters: SageMaker takes at most 256. Shorten it."),
    ({"tags": {str(each): "x" for each in range(51)}},
     "tags has 51 entries: SageMaker takes at most 50. Leave some out."),
    ({"metric_definitions": [LOSS] * 41},
     "metric_definitions has 41 entries: SageMaker takes at most 40. Leave some out."),
    ({"metric_definitions": LOSS},
     "metric_definitions is {'Name': 'loss', 'Regex': 'loss=([0-9.]+)'}: it is not a list of"
     " {'Name': ..., 'Regex': ...}. Pass a list such as [{'Name': 'loss', 'Regex':"
     " 'loss=([0-9.]+)'}]."),
    ({"metric_definitions": [{"Name": "loss"}]},
     "metric_definitions is [{'Name': 'loss'}]: it is not a list of {'Name': ..., 'Regex':"
     " ...}. Pass a list such as [{'Name': 'loss', 'Regex': 'loss=([0-9.]+)'}]."),
    ({"metric_definitions": [{**LOSS, "Name": ""}]},
     "metric_definitions[0]['Name'] is '': SageMaker needs at least one character. Pass a Name."),
    ({"metric_definitions": [{**LOSS, "Name": "a" * 256}]},
     "metric_definitions[0]['Name'] has 256 characters: SageMaker takes at most 255. Shorten it."),
    ({"metric_definitions": [{**LOSS, "Regex": "(" + "a" * 499 + ")"}]},
     "metric_definitions[0]['Regex'] has 501 characters: SageMaker takes at most 500. Shorten it."),
    ({"metric_definitions": [{**LOSS, "Regex": "loss=("}]},
     "metric_definitions[0]['Regex'] is 'loss=(': it is not a regular expression (missing ),"
     " unterminated subpattern at position 5). Correct the expression."),
    ({"metric_definitions": [{**LOSS, "Regex": "loss=.*"}]},
     "metric_definitions[0]['Regex'] is 'loss=.*': the number is its first group, and it has"
     " no group. Put the number's pattern in parentheses."),
    ({"role": "my role"},
     "role is 'my role': a role's name is 1 to 64 letters, digits and any of _+=,.@-. Pass the "
     "name of a role, or its ARN such as 'arn:aws:iam::123456789012:role/training'."),
    ({"role": "arn:aws:iam::1:role/training"},
     "role is 'arn:aws:iam::1:role/training': SageMaker needs a match of"
     " arn:aws[a-z\\-]*:iam::\\d{12}:role/?[a-zA-Z_0-9+=,.@\\-_/]+. Pass the name of a role,"
     " or its ARN such as 'arn:aws:iam::123456789012:role/training'."),
    ({"role": "team/training-of-vision"},
     "role is 'team/training-of-vision': SageMaker needs a match of"
     " arn:aws[a-z\\-]*:iam::\\d{12}:role/?[a-zA-Z_0-9+=,.@\\-_/]+. Pass the name of a role,"
     " or its ARN such as 'arn:aws:iam::123456789012:role/training'."),
    ({"image_uri": "https://example.com/image"},
     "image_uri is 'https://example.com/image': it is not an image name. Pass"
     " registry/repository:tag, without scheme or spaces."),
    ({"image_uri": "x" * 256},
     "image_uri has 256 characters: SageMaker takes at most 255. Shorten it."),
    ({"image_uri": "my image:1"},
     "image_uri is 'my image:1': it is not an image name. Pass registry/repository:tag,"
     " without scheme or spaces."),
    ({"output_kms_key": "my key"},
     "output_kms_key is 'my key': SageMaker needs a match of [a-zA-Z0-9:/_-]*. Pass the id,"
     " the ARN or the alias of a key."),
    ({"volume_kms_key": "*"},
     "volume_kms_key is '*': SageMaker needs a match of [a-zA-Z0-9:/_-]*. Pass the id, the ARN"
     " or the alias of a key."),
    ({"output_path": "/tmp/out"},
     "output_path is '/tmp/out': a bare path is ambiguous. Pass s3://, a bucket and a prefix."),
    ({"output_path": "file:///tmp/out"},
     "output_path is 'file:///tmp/out': an instance of SageMaker cannot write to this machine's "
     "disk. Pass s3://, a bucket and a prefix."),
    ({"output_path": "s3://{bucket}/out"},
     "output_path is 's3://{bucket}/out': '{bucket}' is not a bucket name. Pass 3 to 63"
     " lower-case letters, digits, '.' and '-'."),
    ({"output_path": "s3://bucket/" + "x" * 1013},
     "output_path is "
     "'s3://bucket/xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx...: it has "
     "1025 characters of at most 1024. Shorten it."),
    ({"checkpoint_s3_uri": "gs://bucket/state"},
     "checkpoint_s3_uri is 'gs://bucket/state': gs:// is not supported. Pass s3://, a bucket"
     " and a prefix."),
    ({"code_location": "s3://"},
     "code_location is 's3://': it does not name a bucket. Pass s3://, a bucket and a prefix."),
    ({"code_location": 5},
     "code_location is 5: it is not a str. Pass a str."),
    ({"input_mode": "Stream"},
     "input_mode is 'Stream': SageMaker has no such value. Valid are 'FastFile', 'File', 'Pipe'."),
    ({"training_plan": "mine"},
     "training_plan is 'mine': SageMaker needs at least 50 characters. Pass the ARN of a"
     " training plan."),
    ({"training_repository_access_mode": "vpc"},
     "training_repository_access_mode is 'vpc': SageMaker has no such value. Did you mean 'Vpc'?"),
    ({"training_repository_credentials_provider_arn": "arn:aws:iam::123456789012:role/x"},
     "training_repository_credentials_provider_arn is 'arn:aws:iam::123456789012:role/x':"
     " SageMaker needs a match of arn:[\\w\\-]+:lambda:[\\w\\-]+:[0-9]{12}:function:.*. Pass"
     " the ARN of a Lambda function."),
    ({"container_entry_point": "python train.py"},
     "container_entry_point is 'python train.py': it is not a list. Pass ['python train.py']."),
    ({"container_entry_point": []},
     "container_entry_point has 0 entries: SageMaker needs at least 1. Add one, or leave"
     " container_entry_point out."),
    ({"container_arguments": ["x" * 257]},
     "container_arguments[0] has 257 characters: SageMaker takes at most 256. Shorten it."),
    ({"container_arguments": ["a\nb"]},
     "container_arguments[0] is 'a\\nb': SageMaker allows one line. Remove the line break."),
]
# fmt: on


@pytest.mark.parametrize(("given", "fault"), WRONG)
def test_a_wrong_argument_is_told_in_one_sentence(given, fault):
    """What, why and the hint; none of these was found before the code was uploaded."""
    assert [fault] == faults(given)


def test_all_faults_are_told_at_once():
    given = {"role": "my role", "max_run": 0, "tags": {"aws:a": "x"}, "environment": {"A.B": "x"}}

    assert ["role", "max_run", "tags[0]['Key']", "a name of environment"] == [
        fault.partition(" is ")[0] for fault in faults(given)
    ]


@pytest.mark.parametrize("instance_type", ["local_process", "local", "local_gpu"])
def test_jobs_of_this_machine_have_none_of_these_limits(instance_type):
    """Nobody but SageMaker minds a long value."""
    given = {"hyperparameters": {"x": "a" * 9999}, "environment": {"A.B": "x" * 999}}

    assert [] == faults(given, instance_type=instance_type)


def test_our_distribution_needs_a_hyperparameter_of_its_own():
    given = {"hyperparameters": {str(each): each for each in range(95)}}
    ours = Distribution(engine=DataParallel())

    assert [] == faults(given)
    assert [
        "hyperparameters has 95 entries: SageMaker takes at most 100, and the SDK needs 6 of"
        " them. Leave some out, or pass a file of them as a channel."
    ] == faults(given, distribution=ours)


def test_hyperparameters_of_the_sdk_are_not_counted_twice():
    """After a first fit the estimator holds them itself."""
    own = {str(each): each for each in range(95)}

    assert [] == faults({"hyperparameters": {**own, "sagemaker_region": "us-west-2"}})


@pytest.mark.parametrize(
    ("chosen", "fault"),
    [
        (["a"], None),
        ([InstanceGroup("b", C5, 1)], None),
        (["c"], "['c']: there is no group 'c'. Valid are 'a', 'b'."),
        (["a", "b"], "['a', 'b']: it runs on exactly one group. Name one group."),
    ],
)
def test_a_distribution_runs_on_one_group(chosen, fault):
    groups = [InstanceGroup("a", C5, 1), InstanceGroup("b", C5, 1)]
    asked = Distribution(rest={"mpi": {"enabled": True}, "instance_groups": chosen})
    found = faults({"instance_groups": groups}, instance_type=None, distribution=asked)
    what = "distribution requests the instance_groups "

    assert ([] if fault is None else [what + fault]) == found


@pytest.mark.parametrize("name", ["sagemaker_mpi_enabled", "mp_parameters"])
def test_hyperparameters_do_not_ask_for_another_launcher(name):
    """Ours would refuse them once the cluster is there."""
    given = {"hyperparameters": {name: True}}
    ours = Distribution(engine=DataParallel())

    assert [] == faults(given)
    assert [
        f"hyperparameters has the name {name!r}: it requests another launcher than distribution"
        " does. Leave it out, or leave distribution out."
    ] == faults(given, distribution=ours, uses_launcher=True)
