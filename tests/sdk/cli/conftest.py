# SPDX-License-Identifier: Apache-2.0
"""Fixtures for commands: a job file with its script in the working directory, and 80 columns."""

import os
from pathlib import Path
from textwrap import dedent

import pytest
from accounts import REGION, Session
from moto import mock_aws

TOML = """
    entry_point = "train.py"
    role = "training"
    instance_type = "ml.p4d.24xlarge"
    instance_count = 2
    output_path = "s3://models/out"
    job_name = "my-job"
    subnets = ["subnet-0a1b2c3d"]
    security_group_ids = ["sg-0a1b2c3d"]

    [distribution.smdist.dataparallel]
    fusion_bytes = 26214400

    [hyperparameters]
    epochs = 3
    lr = 0.1

    [environment]
    LOG_LEVEL = "info"

    [inputs.train]
    uri = "s3://data/train"
    distribution = "ShardedByS3Key"
    input_mode = "FastFile"

    [inputs]
    home = "fsx://fs-0123456789abcdef0/mount/data"
    """


@pytest.fixture
def job_file(tmp_path, monkeypatch):
    """Return a function that writes job.toml; its default text is a job on SageMaker."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text("print('hello from', host, flush=True)\n")

    def write(text=TOML, name="job.toml"):
        path = Path(name)
        path.write_text(dedent(text).lstrip("\n"))
        return str(path)

    return write


@pytest.fixture
def golden():
    """Return a function that compares text with a golden file; SMDIST_UPDATE_SNAPSHOTS=1 rewrites
    the file.
    """

    def compare(name, said):
        path = Path(__file__).parent / "golden" / name
        if os.environ.get("SMDIST_UPDATE_SNAPSHOTS") == "1":
            path.write_text(said)
        assert path.read_text() == said

    return compare


@pytest.fixture
def session(monkeypatch):
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "x")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "y")
    with mock_aws():
        yield Session()


@pytest.fixture
def vpc(session):
    """Create a VPC with one subnet and one security group."""
    ec2 = session.client("ec2")
    vpc = ec2.create_vpc(CidrBlock="10.0.0.0/16")["Vpc"]["VpcId"]
    subnet = ec2.create_subnet(VpcId=vpc, CidrBlock="10.0.0.0/24", AvailabilityZone=f"{REGION}a")
    group = ec2.create_security_group(GroupName="ranks", Description="ranks", VpcId=vpc)
    return {"vpc": vpc, "subnet": subnet["Subnet"]["SubnetId"], "group": group["GroupId"]}
