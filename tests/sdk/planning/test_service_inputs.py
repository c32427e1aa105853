# SPDX-License-Identifier: Apache-2.0
"""Inputs that SageMaker would refuse, or that would not arrive as they are meant."""

import pytest
from sagemaker.inputs import FileSystemInput, TrainingInput
from sagemaker.instance_group import InstanceGroup
from sagemaker.workflow.parameters import ParameterString

from sagemaker_dist.estimators import estimator_facts
from sagemaker_dist.planning import Job, fit_faults

C5 = "ml.c5.xlarge"
URI = "s3://bucket/data"
VOLUME = "fs-0123456789abcdef0"
FSX, EFS = f"fsx://{VOLUME}", f"efs://{VOLUME}"
VPC = {"subnets": ["subnet-1"], "security_group_ids": ["sg-1"]}
GROUPS = {"instance_groups": [InstanceGroup("a", C5, 1), InstanceGroup("b", C5, 1)]}


def faults(inputs, *, input_mode="File", model_uri=None, **given):
    """What is wrong with the inputs of a job of SageMaker, in sentences."""
    hosts = {} if "instance_groups" in given else {"instance_type": C5, "instance_count": 1}
    inputs = estimator_facts.expand_file_systems(inputs)
    job = Job(
        instance_type=hosts.get("instance_type"),
        terms=estimator_facts.terms({**hosts, **given}),
        channels=estimator_facts.channels(inputs, input_mode=input_mode)
        + estimator_facts.model_channel("model", model_uri),
    )
    return [str(fault) for fault in fit_faults(job)]


def one(**how):
    """A channel with more than its place."""
    return {"a": TrainingInput(URI, **how)}


# fmt: off
WRONG = [
    (f"{FSX}/mount/data", {},
     "channel 'training' is a file system: it can be reached only from your own VPC. Pass"
     " subnets and security_group_ids from which it can be mounted."),
    (f"{EFS}/data", {},
     "channel 'training' is a file system: it can be reached only from your own VPC. Pass"
     " subnets and security_group_ids from which it can be mounted."),
    ({"a": FileSystemInput(VOLUME, "EFS", "/")}, {},
     "channel 'a' is a file system: it can be reached only from your own VPC. Pass subnets and"
     " security_group_ids from which it can be mounted."),
    (FSX, VPC,
     "the directory of channel 'training' is '/': a path of FSx for Lustre begins with the "
     "mount name. Pass '/' and the file system's MountName, as FSx describes it."),
    (f"{FSX}/", VPC,
     "the directory of channel 'training' is '/': a path of FSx for Lustre begins with the "
     "mount name. Pass '/' and the file system's MountName, as FSx describes it."),
    ("efs://fs-xyz/data", VPC,
     "the file system of channel 'training' is 'fs-xyz': SageMaker needs at least 11"
     " characters. Pass an id such as 'fs-0123456789abcdef0'."),
    ("efs://fs-0123456789abcdefg/data", VPC,
     "the file system of channel 'training' is 'fs-0123456789abcdefg': SageMaker needs a match"
     " of (fs-[0-9a-f]{8,}). Pass an id such as 'fs-0123456789abcdef0'."),
    ("efs://fs-0123456789abcdef012/data", VPC,
     "the file system of channel 'training' has 22 characters: SageMaker takes at most 21."
     " Shorten it."),
    (f"{EFS}/data/../..", VPC,
     "the directory of channel 'training' is '/data/../..': '..' leads out of the file system."
     " Pass a path from its root."),
    (FileSystemInput(VOLUME, "EFS", "data"), VPC,
     "the directory of channel 'training' is 'data': it is not an absolute path. Pass one that"
     " begins with '/'."),
    (f"{EFS}/data", {**VPC, "input_mode": "Pipe"},
     "input_mode of channel 'training' is 'Pipe': SageMaker mounts file systems only in File"
     " mode. Pass input_mode='File'."),
    (f"{FSX}/mount", {**VPC, "input_mode": "FastFile"},
     "input_mode of channel 'training' is 'FastFile': SageMaker mounts file systems only in"
     " File mode. Pass input_mode='File'."),
    (one(distribution="Sharded"), {},
     "distribution of channel 'a' is 'Sharded': SageMaker has no such value. Did you mean"
     " 'ShardedByS3Key'?"),
    (one(compression="zip"), {},
     "compression of channel 'a' is 'zip': SageMaker has no such value. Did you mean 'Gzip'?"),
    (one(record_wrapping="Record"), {},
     "record_wrapping of channel 'a' is 'Record': SageMaker has no such value. Did you mean"
     " 'RecordIO'?"),
    (one(s3_data_type="Prefix"), {},
     "s3_data_type of channel 'a' is 'Prefix': SageMaker has no such value. Did you mean"
     " 'S3Prefix'?"),
    (one(input_mode="Stream"), {},
     "input_mode of channel 'a' is 'Stream': SageMaker has no such value. Valid are"
     " 'FastFile', 'File', 'Pipe'."),
    (one(s3_data_type="ManifestFile", input_mode="FastFile"), {},
     "s3_data_type of channel 'a' is 'ManifestFile': FastFile mode reads a prefix, not"
     " manifests. Pass s3_data_type='S3Prefix', or input_mode='File'."),
    (one(s3_data_type="AugmentedManifestFile", input_mode="FastFile"), {},
     "s3_data_type of channel 'a' is 'AugmentedManifestFile': FastFile mode reads a prefix,"
     " not manifests. Pass s3_data_type='S3Prefix', or input_mode='File'."),
    (one(s3_data_type="ManifestFile"), {"input_mode": "FastFile"},
     "s3_data_type of channel 'a' is 'ManifestFile': FastFile mode reads a prefix, not"
     " manifests. Pass s3_data_type='S3Prefix', or input_mode='File'."),
    (one(compression="Gzip"), {},
     "compression of channel 'a' is 'Gzip': only Pipe mode unpacks data. Leave compression out"
     " and unpack in the script, or pass input_mode='Pipe'."),
    (one(compression="Gzip", input_mode="FastFile"), {},
     "compression of channel 'a' is 'Gzip': only Pipe mode unpacks data. Leave compression out"
     " and unpack in the script, or pass input_mode='Pipe'."),
    (one(record_wrapping="RecordIO"), {},
     "record_wrapping of channel 'a' is 'RecordIO': only Pipe mode wraps data. Leave"
     " record_wrapping out, or pass input_mode='Pipe'."),
    ({str(each): URI for each in range(21)}, {},
     "the job has 21 channels: SageMaker takes at most 20. Put several inputs under one prefix."),
    ({str(each): URI for each in range(20)}, {"enable_network_isolation": True},
     "the job has 21 channels, including one for its code: SageMaker takes at most 20. Put"
     " several inputs under one prefix."),
    ({str(each): URI for each in range(20)}, {"model_uri": URI},
     "the job has 21 channels: SageMaker takes at most 20. Put several inputs under one prefix."),
    ({"code": URI}, {"enable_network_isolation": True},
     "a channel is named 'code': with enable_network_isolation it carries the code. Pass"
     " another name."),
    ({"sm_drivers": URI}, {},
     "a channel is named 'sm_drivers': SageMaker's SDK 3 and its images use it for a launcher."
     " Pass another name."),
    ({"recipe": URI}, {"training_recipe": "mine.yaml"},
     "a channel is named 'recipe': it carries the training_recipe. Pass another name."),
    ({"model": URI}, {"model_uri": URI},
     "a channel is named 'model': another has the same name. Pass another name, or another"
     " model_channel_name."),
    ("s3://b/data", {},
     "channel 'training' is 's3://b/data': 'b' is not a bucket name. Pass 3 to 63 lower-case"
     " letters, digits, '.' and '-'."),
    ("s3://bucket-{}/data", {},
     "channel 'training' is 's3://bucket-{}/data': 'bucket-{}' is not a bucket name. Pass 3 to"
     " 63 lower-case letters, digits, '.' and '-'."),
    ("s3://-bucket/data", {},
     "channel 'training' is 's3://-bucket/data': '-bucket' is not a bucket name. Pass 3 to 63"
     " lower-case letters, digits, '.' and '-'."),
    ("s3://bucket/" + "x" * 1013, {},
     "channel 'training' is "
     "'s3://bucket/xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx...: it has "
     "1025 characters of at most 1024. Shorten it."),
    ({"a": TrainingInput(URI, instance_groups=["a"]), "b": URI}, GROUPS,
     "channels 'a' have instance_groups and 'b' have none: SageMaker needs instance_groups on"
     " all channels or on none. Pass instance_groups for every channel, or for none."),
    (one(instance_groups=["c"]), GROUPS,
     "channel 'a' is for the instance group 'c': the job has no such group. Valid are 'a', 'b'."),
    (one(instance_groups=["a"]), {},
     "channel 'a' is for the instance group 'a': the job has no such group. Leave "
     "instance_groups of the channel out."),
    (None, {"training_repository_access_mode": "Vpc"},
     "training_repository_access_mode is 'Vpc': the registry can be reached only from your own"
     " VPC. Pass subnets and security_group_ids."),
    (None, {"instance_type": None},
     "instance_type is left out: SageMaker needs the type and the number of instances. Pass"
     " instance_type and instance_count, or instance_groups."),
    (None, {"instance_count": None},
     "instance_count is left out: SageMaker needs the type and the number of instances. Pass"
     " instance_type and instance_count, or instance_groups."),
]
# fmt: on


@pytest.mark.parametrize(("inputs", "given", "fault"), WRONG)
def test_a_wrong_input_is_told_in_one_sentence(inputs, given, fault):
    assert [fault] == faults(inputs, **given)


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
    """Neither has what only a pipeline will know."""
    assert [] == faults(inputs, **given)


def test_a_bucket_of_another_region():
    """Said where somebody knows: nothing here asks S3."""
    hosts = {"instance_type": C5, "instance_count": 1}
    regions = {"bucket": "eu-west-1", "near": "us-west-2"}
    terms = estimator_facts.terms(hosts, region="us-west-2", bucket_regions=regions)
    job = Job(
        instance_type=C5,
        terms=terms,
        channels=estimator_facts.channels({"a": URI, "b": "s3://near"}),
    )

    assert [
        "channel 'a' is 's3://bucket/data': its bucket is in eu-west-1, but the job runs in"
        " us-west-2. Pass a bucket in us-west-2, or a session in eu-west-1."
    ] == [str(fault) for fault in fit_faults(job)]
