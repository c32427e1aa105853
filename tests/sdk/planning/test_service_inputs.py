# SPDX-License-Identifier: Apache-2.0
"""Inputs that SageMaker would refuse, or would not deliver as requested, are refused."""

import pytest
from error_fields import fields_of
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
# Each request has one fault: the path of the wrong option, and the kind of the fault.
WRONG = [
    (f"{FSX}/mount/data", {}, "inputs.training", "missing"),
    (f"{EFS}/data", {}, "inputs.training", "missing"),
    ({"a": FileSystemInput(VOLUME, "EFS", "/")}, {}, "inputs.a", "missing"),
    (FSX, VPC, "inputs.training.uri", "incomplete"),
    (f"{FSX}/", VPC, "inputs.training.uri", "incomplete"),
    ("efs://fs-xyz/data", VPC, "inputs.training.uri", "too_short"),
    ("efs://fs-0123456789abcdefg/data", VPC, "inputs.training.uri", "option"),
    ("efs://fs-0123456789abcdef012/data", VPC, "inputs.training.uri", "too_long"),
    (f"{EFS}/data/../..", VPC, "inputs.training.uri", "outside"),
    (FileSystemInput(VOLUME, "EFS", "data"), VPC, "inputs.training.uri", "relative"),
    (f"{EFS}/data", {**VPC, "input_mode": "Pipe"}, "inputs.training.input_mode", "unsupported"),
    (f"{FSX}/mount", {**VPC, "input_mode": "FastFile"}, "inputs.training.input_mode",
     "unsupported"),
    (one(distribution="Sharded"), {}, "inputs.a.distribution", "unknown"),
    (one(compression="zip"), {}, "inputs.a.compression", "unknown"),
    (one(record_wrapping="Record"), {}, "inputs.a.record_wrapping", "unknown"),
    (one(s3_data_type="Prefix"), {}, "inputs.a.s3_data_type", "unknown"),
    (one(input_mode="Stream"), {}, "inputs.a.input_mode", "unknown"),
    (one(s3_data_type="ManifestFile", input_mode="FastFile"), {}, "inputs.a.s3_data_type",
     "conflict"),
    (one(s3_data_type="AugmentedManifestFile", input_mode="FastFile"), {},
     "inputs.a.s3_data_type", "conflict"),
    (one(s3_data_type="ManifestFile"), {"input_mode": "FastFile"}, "inputs.a.s3_data_type",
     "conflict"),
    (one(compression="Gzip"), {}, "inputs.a.compression", "conflict"),
    (one(compression="Gzip", input_mode="FastFile"), {}, "inputs.a.compression", "conflict"),
    (one(record_wrapping="RecordIO"), {}, "inputs.a.record_wrapping", "conflict"),
    ({str(each): URI for each in range(21)}, {}, "inputs", "too_many"),
    ({str(each): URI for each in range(20)}, {"enable_network_isolation": True}, "inputs",
     "too_many"),
    ({str(each): URI for each in range(20)}, {"model_uri": URI}, "inputs", "too_many"),
    ({"code": URI}, {"enable_network_isolation": True}, "inputs.code", "reserved"),
    ({"sm_drivers": URI}, {}, "inputs.sm_drivers", "reserved"),
    ({"recipe": URI}, {"training_recipe": "mine.yaml"}, "inputs.recipe", "reserved"),
    ({"model": URI}, {"model_uri": URI}, "inputs.model", "repeated"),
    ("s3://b/data", {}, "inputs.training.uri", "option"),
    ("s3://bucket-{}/data", {}, "inputs.training.uri", "option"),
    ("s3://-bucket/data", {}, "inputs.training.uri", "option"),
    ("s3://bucket/" + "x" * 1013, {}, "inputs.training.uri", "too_long"),
    ({"a": TrainingInput(URI, instance_groups=["a"]), "b": URI}, GROUPS, "inputs.b", "missing"),
    (one(instance_groups=["c"]), GROUPS, "inputs.a.instance_groups", "unknown"),
    (one(instance_groups=["a"]), {}, "inputs.a.instance_groups", "unknown"),
    (None, {"training_repository_access_mode": "Vpc"}, "training_repository_access_mode",
     "missing"),
    (None, {"instance_type": None}, "instance_type", "missing"),
    (None, {"instance_count": None}, "instance_count", "missing"),
]
# fmt: on


@pytest.mark.parametrize(("inputs", "given", "path", "kind"), WRONG)
def test_a_wrong_input_is_one_fault(inputs, given, path, kind):
    assert [(path, kind)] == fields_of(faults(inputs, **given))


def test_text_of_a_wrong_input():
    """The text has the channels on both sides."""
    inputs = {"a": TrainingInput(URI, instance_groups=["a"]), "b": URI}
    (fault,) = faults(inputs, **GROUPS)

    assert str(fault) == (
        "channels 'a' have instance_groups and 'b' have none: SageMaker needs instance_groups on"
        " all channels or on none. Pass instance_groups for every channel, or for none."
    )


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

    assert [("inputs.a.uri", "region")] == fields_of(fit_faults(job))
