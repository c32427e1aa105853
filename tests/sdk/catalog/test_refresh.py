# SPDX-License-Identifier: Apache-2.0
"""The table anew, with EC2's answers written down (botocore's Stubber) or moto's."""

from dataclasses import replace
from datetime import datetime, timezone

import boto3
import botocore
import pytest
from botocore.stub import Stubber
from moto import mock_aws

from sagemaker_dist.catalog import SHIPPED, Instance, Table, read_table, refresh_table
from sagemaker_dist.catalog.refresh import refresh_with
from sagemaker_dist.errors import SetupError

G5 = {
    "InstanceType": "g5.12xlarge",
    "VCpuInfo": {"DefaultVCpus": 48},
    "MemoryInfo": {"SizeInMiB": 196608},
    "ProcessorInfo": {"SupportedArchitectures": ["x86_64"]},
    "GpuInfo": {"Gpus": [{"Name": "A10G", "Count": 4, "MemoryInfo": {"SizeInMiB": 22888}}]},
    "NetworkInfo": {
        "NetworkPerformance": "40 Gigabit",
        "EfaSupported": True,
        "EfaInfo": {"MaximumEfaInterfaces": 1},
    },
}
C5 = {"InstanceType": "c5.xlarge", "VCpuInfo": {"DefaultVCpus": 4}}
OTHER = {"InstanceType": "mac2.metal", "VCpuInfo": {"DefaultVCpus": 8}}
OLD = "another source, 2020-01-01"
BEFORE = Table(
    source="another source",
    names="names",
    date="2020-01-01",
    instances={
        each.name: each
        for each in (
            Instance(name="ml.p4d.24xlarge", num_vcpus=96, sources=(OLD,)),
            Instance(name="ml.c5.xlarge", num_vcpus=1, sources=(OLD,)),
            Instance(name="ml.p2.xlarge"),
            Instance(name="ml.gone.xlarge", num_vcpus=2, sources=(OLD,)),
        )
    },
)


@pytest.fixture
def session():
    return boto3.Session("testing", "testing", region_name="eu-west-1")


@pytest.fixture
def stubbed(session):
    """EC2 answers in two pages."""
    ec2 = session.client("ec2")
    with Stubber(ec2) as stub:
        first = {"InstanceTypes": [G5, OTHER], "NextToken": "more"}
        stub.add_response("describe_instance_types", first, {})
        stub.add_response("describe_instance_types", {"InstanceTypes": [C5]}, {"NextToken": "more"})
        yield ec2
        stub.assert_no_pending_responses()


@pytest.fixture
def done(session, stubbed):
    return refresh_with(stubbed, session.client("sagemaker"), before=BEFORE)


def test_every_page_is_asked_for(done):
    """What EC2 describes is taken if SageMaker trains on it."""
    assert {"ml.g5.12xlarge", "ml.c5.xlarge"} == done.described
    assert "ml.mac2.metal" not in done.table.instances


def test_facts_are_new(done):
    """A type that is described has EC2's facts, not those of the table before."""
    source = f"ec2.describe_instance_types in eu-west-1, {datetime.now(timezone.utc).date()}"

    assert 4 == done.table.instances["ml.c5.xlarge"].num_vcpus
    assert (
        Instance(
            name="ml.g5.12xlarge",
            accelerator="A10G",
            accelerator_kind="gpu",
            num_accelerators=4,
            accelerator_memory_gib=22.4,
            num_vcpus=48,
            memory_gib=192.0,
            network_gbps=40.0,
            network_sustained_gbps=40.0,
            num_efa=1,
            architecture="x86_64",
            sources=(source,),
        )
        == done.table.instances["ml.g5.12xlarge"]
    )


def test_what_a_region_does_not_offer_is_kept(done):
    """Its facts stay, and so does their source; nothing is kept of a mere name."""
    assert {"ml.p4d.24xlarge"} == done.kept
    assert BEFORE.instances["ml.p4d.24xlarge"] == done.table.instances["ml.p4d.24xlarge"]
    assert Instance(name="ml.p2.xlarge") == done.table.instances["ml.p2.xlarge"]


def test_names_are_those_of_the_service_model(session, done):
    """boto3's enumeration says which types there are, new and gone."""
    model = session.client("sagemaker").meta.service_model
    names = set(model.shape_for("TrainingInstanceType").enum)

    assert names == set(done.table.instances)
    assert names - set(BEFORE.instances) == done.added
    assert {"ml.gone.xlarge"} == done.removed
    assert f"TrainingInstanceType in botocore {botocore.__version__}" == done.table.names


@pytest.mark.slow
@mock_aws
def test_shipped_rows_of_moto_are_what_moto_says(session):
    """The table can be made again: rows that name moto's data are its data."""
    shipped = read_table(SHIPPED)
    done = refresh_table(session, before=shipped)
    of_moto = [each for each in shipped.instances.values() if "moto" in "".join(each.sources)]

    assert of_moto == [
        replace(done.table.instances[each.name], sources=each.sources) for each in of_moto
    ]


def test_refusal_names_the_permission(session):
    """The error has the region, EC2's code and message, and the IAM action to allow."""
    ec2 = session.client("ec2")
    with Stubber(ec2) as stub:
        stub.add_client_error("describe_instance_types", "UnauthorizedOperation", "You may not.")
        with pytest.raises(SetupError) as raised:
            refresh_with(ec2, session.client("sagemaker"), before=BEFORE)

    assert "access_denied" == raised.value.kind
    assert (
        "Amazon EC2 in region eu-west-1 did not answer: UnauthorizedOperation: You may not. Renew"
        " the credentials, or allow them ec2:DescribeInstanceTypes in an IAM policy."
    ) == str(raised.value)


def test_no_region():
    with pytest.raises(SetupError) as raised:
        refresh_table(boto3.Session("testing", "testing"), before=BEFORE)

    assert "no_region" == raised.value.kind


def test_no_credentials():
    with pytest.raises(SetupError) as raised:
        refresh_table(boto3.Session(region_name="eu-west-1"), before=BEFORE)

    assert "no_credentials" == raised.value.kind
