# SPDX-License-Identifier: Apache-2.0
"""Inputs that SageMaker would refuse, or would not deliver as requested, are refused."""

import pytest
from sagemaker.inputs import FileSystemInput, TrainingInput
from sagemaker.instance_group import InstanceGroup
from sagemaker.workflow.parameters import ParameterString

from sagemaker_dist.errors import dotted
from sagemaker_dist.estimators import estimator_facts
from sagemaker_dist.planning import Job, fit_faults

C5 = "ml.c5.xlarge"
URI = "s3://bucket/data"
VOLUME = "fs-0123456789abcdef0"
FSX, EFS = f"fsx://{VOLUME}", f"efs://{VOLUME}"
VPC = {"subnets": ["subnet-1"], "security_group_ids": ["sg-1"]}
GROUPS = {"instance_groups": [InstanceGroup("a", C5, 1), InstanceGroup("b", C5, 1)]}


def faults(inputs, *, input_mode="File", model_uri=None, **given):
    """Return the faults of the inputs of a SageMaker job."""
    hosts = {} if "instance_groups" in given else {"instance_type": C5, "instance_count": 1}
    inputs = estimator_facts.expand_file_systems(inputs)
    job = Job(
        instance_type=hosts.get("instance_type"),
        terms=estimator_facts.terms({**hosts, **given}),
        channels=estimator_facts.channels(inputs, input_mode=input_mode)
        + estimator_facts.model_channel("model", model_uri),
    )
    return list(fit_faults(job))


def one(**how):
    """Return one input channel with further arguments of TrainingInput."""
    return {"a": TrainingInput(URI, **how)}


# fmt: off
# Each request has one fault: the path of the wrong option.
WRONG = [
    (f"{FSX}/mount/data", {}, "inputs.training"),
    (f"{EFS}/data", {}, "inputs.training"),
    ({"a": FileSystemInput(VOLUME, "EFS", "/")}, {}, "inputs.a"),
    (FSX, VPC, "inputs.training.uri"),
    (f"{FSX}/", VPC, "inputs.training.uri"),
    ("efs://fs-xyz/data", VPC, "inputs.training.uri"),
    ("efs://fs-0123456789abcdefg/data", VPC, "inputs.training.uri"),
    ("efs://fs-0123456789abcdef012/data", VPC, "inputs.training.uri"),
    (f"{EFS}/data/../..", VPC, "inputs.training.uri"),
    (FileSystemInput(VOLUME, "EFS", "data"), VPC, "inputs.training.uri"),
    (f"{EFS}/data", {**VPC, "input_mode": "Pipe"}, "inputs.training.input_mode"),
    (f"{FSX}/mount", {**VPC, "input_mode": "FastFile"}, "inputs.training.input_mode"),
    (one(distribution="Sharded"), {}, "inputs.a.distribution"),
    (one(compression="zip"), {}, "inputs.a.compression"),
    (one(record_wrapping="Record"), {}, "inputs.a.record_wrapping"),
    (one(s3_data_type="Prefix"), {}, "inputs.a.s3_data_type"),
    (one(input_mode="Stream"), {}, "inputs.a.input_mode"),
    (one(s3_data_type="ManifestFile", input_mode="FastFile"), {}, "inputs.a.s3_data_type"),
    (one(s3_data_type="AugmentedManifestFile", input_mode="FastFile"), {},
     "inputs.a.s3_data_type"),
    (one(s3_data_type="ManifestFile"), {"input_mode": "FastFile"}, "inputs.a.s3_data_type"),
    (one(compression="Gzip"), {}, "inputs.a.compression"),
    (one(compression="Gzip", input_mode="FastFile"), {}, "inputs.a.compression"),
    (one(record_wrapping="RecordIO"), {}, "inputs.a.record_wrapping"),
    ({str(each): URI for each in range(21)}, {}, "inputs"),
    ({str(each): URI for each in range(20)}, {"enable_network_isolation": True}, "inputs"),
    ({str(each): URI for each in range(20)}, {"model_uri": URI}, "inputs"),
    ({"code": URI}, {"enable_network_isolation": True}, "inputs.code"),
    ({"sm_drivers": URI}, {}, "inputs.sm_drivers"),
    ({"recipe": URI}, {"training_recipe": "mine.yaml"}, "inputs.recipe"),
    ({"model": URI}, {"model_uri": URI}, "inputs.model"),
    ("s3://b/data", {}, "inputs.training.uri"),
    ("s3://bucket-{}/data", {}, "inputs.training.uri"),
    ("s3://-bucket/data", {}, "inputs.training.uri"),
    ("s3://bucket/" + "x" * 1013, {}, "inputs.training.uri"),
    ({"a": TrainingInput(URI, instance_groups=["a"]), "b": URI}, GROUPS, "inputs.b"),
    (one(instance_groups=["c"]), GROUPS, "inputs.a.instance_groups"),
    (one(instance_groups=["a"]), {}, "inputs.a.instance_groups"),
    (None, {"training_repository_access_mode": "Vpc"}, "training_repository_access_mode"),
    (None, {"instance_type": None}, "instance_type"),
    (None, {"instance_count": None}, "instance_count"),
]
# One message of each check, in full.
TEXTS = [
    (f"{FSX}/mount/data", {},
     "channel 'training' is a file system: a file system can be reached only from your own"
     " VPC. Pass subnets and security_group_ids from which it can be mounted."),
    (FSX, VPC,
     "the directory of channel 'training' is '/': a path in FSx for Lustre begins with the"
     " file system's mount name. Pass '/' followed by the MountName that FSx shows for the"
     " file system."),
    ("efs://fs-xyz/data", VPC,
     "the file system of channel 'training' is 'fs-xyz': SageMaker needs at least 11"
     " characters. Pass an id such as 'fs-0123456789abcdef0'."),
    (f"{EFS}/data", {**VPC, "input_mode": "Pipe"},
     "input_mode of channel 'training' is 'Pipe': SageMaker mounts file systems only in File"
     " mode. Pass input_mode='File'."),
    (one(s3_data_type="ManifestFile", input_mode="FastFile"), {},
     "s3_data_type of channel 'a' is 'ManifestFile': FastFile mode reads all objects below a"
     " prefix, but no manifests. Pass s3_data_type='S3Prefix', or input_mode='File'."),
    ({str(each): URI for each in range(21)}, {},
     "the job has 21 channels: SageMaker allows at most 20. Put the data of several channels"
     " under one prefix."),
    ({"code": URI}, {"enable_network_isolation": True},
     "a channel is named 'code': with enable_network_isolation, the code is sent in this"
     " channel. Rename the channel."),
    ("s3://b/data", {},
     "channel 'training' is 's3://b/data': 'b' is not a bucket name. Pass 3 to 63 lower-case"
     " letters, digits, '.' and '-'."),
    ({"a": TrainingInput(URI, instance_groups=["a"]), "b": URI}, GROUPS,
     "channels 'a' have instance_groups and 'b' have none: SageMaker needs instance_groups"
     " on all channels or on none. Pass instance_groups for every channel, or for none."),
    (None, {"instance_type": None},
     "instance_type is left out: SageMaker needs the type and the number of instances. Pass"
     " instance_type and instance_count, or instance_groups."),
]
# fmt: on


@pytest.mark.parametrize(("inputs", "given", "path"), WRONG)
def test_a_wrong_input_is_one_fault(inputs, given, path):
    assert [path] == [dotted(fault.about) for fault in faults(inputs, **given)]


@pytest.mark.parametrize(("inputs", "given", "text"), TEXTS)
def test_messages_of_wrong_inputs(inputs, given, text):
    assert [text] == [str(fault) for fault in faults(inputs, **given)]


@pytest.mark.parametrize(
    ("inputs", "given"),
    [
        (None, {}),
        (URI, {}),
        ("s3://My_Old.Bucket/data", {}),
        ("s3://arn:aws:s3:us-west-2:123456789012:accesspoint/mine/data", {}),
        ({"code": URI, "recipe": URI}, {}),
        ({str(each): URI for each in range(20)}, {}),
        (FileSystemInput(VOLUME, "FSxLustre", "/mount/data"), VPC),
        (EFS, VPC),
        (EFS, {name: [ParameterString(name)] for name in VPC}),
        (EFS, {name: ParameterString(name) for name in VPC}),
        (one(compression="Gzip", record_wrapping="RecordIO", input_mode="Pipe"), {}),
        (one(compression="Gzip"), {"input_mode": ParameterString("Mode")}),
        (one(compression=ParameterString("Compression")), {}),
        (one(s3_data_type="AugmentedManifestFile", input_mode="Pipe"), {}),
        (one(s3_data_type="ManifestFile"), {}),
        (one(instance_groups=["a"]), GROUPS),
        (one(instance_groups=[ParameterString("Group")]), GROUPS),
        ({"a": TrainingInput(URI, instance_groups=["a"]), "b": EFS}, {**GROUPS, **VPC}),
        (ParameterString("Uri"), {}),
    ],
)
def test_a_good_input_has_no_fault(inputs, given):
    """Inputs with pipeline variables have no fault either."""
    assert [] == faults(inputs, **given)


def test_a_bucket_of_another_region():
    """Reported if the regions are known; no test calls S3."""
    hosts = {"instance_type": C5, "instance_count": 1}
    regions = {"bucket": "eu-west-1", "near": "us-west-2"}
    terms = estimator_facts.terms(hosts, region="us-west-2", bucket_regions=regions)
    job = Job(
        instance_type=C5,
        terms=terms,
        channels=estimator_facts.channels({"a": URI, "b": "s3://near"}),
    )

    (fault,) = fit_faults(job)

    assert ("inputs", "a", "uri") == fault.about
    assert "eu-west-1" in fault.why
    assert "us-west-2" in fault.hint
