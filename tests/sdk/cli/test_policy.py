# SPDX-License-Identifier: Apache-2.0
"""`sagemaker-dist doctor --iam | --iam-role`: actions and resources that the policies allow."""

import fnmatch
import json
from pathlib import Path

import pytest
from accounts import REGION

from sagemaker_dist.cli import main


def test_policy(capsys, job_file, session):
    """The user's policy allows the submission of this job, on its resources only."""
    status = main(["doctor", job_file(), "--iam", "--region", REGION])
    statements = {each["Sid"]: each for each in json.loads(capsys.readouterr().out)["Statement"]}

    assert 0 == status
    assert ["arn:aws:s3:::models/out/my-job/source/*"] == statements["Code"]["Resource"]
    assert {"StringEquals": {"iam:PassedToService": "sagemaker.amazonaws.com"}} == statements[
        "Pass"
    ]["Condition"]
    assert ["arn:aws:iam::123456789012:role/training"] == statements["Pass"]["Resource"]
    assert ["arn:aws:sagemaker:eu-west-1:123456789012:training-job/my-job"] == (
        statements["Job"]["Resource"]
    )
    assert ["arn:aws:ecr:eu-west-1:123456789012:repository/sagemaker-dist"] == (
        statements["Labels"]["Resource"]
    )
    stars = {name for name, each in statements.items() if "*" in each["Resource"]}
    assert set() == stars


def test_policy_without_gpus(capsys, job_file, session):
    """Labels are read only for jobs with GPUs."""
    found = statements_of(capsys, job_file(), "--iam", *settings("instance_type=ml.c5.xlarge"))

    assert "Labels" not in found


def test_policy_of_the_role(capsys, job_file, session):
    """The role's policy allows data, model, image, logs and network of the job."""
    status = main(["doctor", job_file(), "--iam-role", "--region", REGION])
    statements = {each["Sid"]: each for each in json.loads(capsys.readouterr().out)["Statement"]}

    assert 0 == status
    assert "arn:aws:s3:::data/train*" in statements["Read"]["Resource"]
    assert ["arn:aws:s3:::models/out/*"] == statements["Write"]["Resource"]
    assert ["arn:aws:ecr:eu-west-1:123456789012:repository/sagemaker-dist"] == (
        statements["Pull"]["Resource"]
    )
    assert "ec2:CreateNetworkInterface" in statements["Interfaces"]["Action"]


def statements_of(capsys, path, *given):
    assert 0 == main(["doctor", path, "--region", REGION, *given])
    return {each["Sid"]: each for each in json.loads(capsys.readouterr().out)["Statement"]}


def settings(*given):
    return [part for each in given for part in ("--set", each)]


def test_policy_of_a_name_that_is_everywhere(capsys, job_file, session):
    """Only paths below the job's own name are allowed, even if a bucket contains the name."""
    job = settings("job_name=out", "output_path=s3://my-out-bucket/out/models")
    found = statements_of(capsys, job_file(), "--iam", *job)
    role = statements_of(capsys, job_file(), "--iam-role", *job)

    place = "arn:aws:s3:::my-out-bucket/out/models/out/source/*"
    assert [place] == found["Code"]["Resource"]
    assert place in role["Read"]["Resource"]


@pytest.mark.parametrize("isolation", ["true", "false"])
def test_policy_of_every_job_of_a_file(capsys, job_file, session, isolation):
    """Without job_name, the policy has patterns for the names and code of all jobs of the file."""
    path = Path(job_file())
    path.write_text(path.read_text().replace('job_name = "my-job"', 'base_job_name = "My"'))
    path = str(path)
    job = settings("inputs={ train = 's3://data' }", f"enable_network_isolation={isolation}")
    found = statements_of(capsys, path, "--iam", *job)
    role = statements_of(capsys, path, "--iam-role", *job)
    jobs = "arn:aws:sagemaker:eu-west-1:123456789012:training-job/"

    code = "arn:aws:s3:::models/out/My-*/source/*"
    assert [code] == found["Code"]["Resource"]
    assert ["arn:aws:s3:::data/*", code] == role["Read"]["Resource"]
    assert [f"{jobs}My-*", f"{jobs}my-*"] == found["Job"]["Resource"]


def test_policy_of_code_that_is_there(capsys, job_file, session):
    """Code in S3 is only read, never uploaded; a secret of the user beside it is read, too."""
    job = settings("source_dir=s3://code/my-job/source/a.tar.gz")
    found = statements_of(capsys, job_file(), "--iam", *job)
    role = statements_of(capsys, job_file(), "--iam-role", *job)

    assert "Code" not in found
    assert "arn:aws:s3:::code/my-job/source/a.tar.gz" in role["Read"]["Resource"]
    assert "arn:aws:s3:::code/my-job/source/a.tar.gz.secret" in role["Read"]["Resource"]


def test_policies_allow_the_secret_beside_the_code(capsys, job_file, session):
    """The user creates it where the code is, and the role reads it there."""
    key = "arn:aws:s3:::models/out/my-job/source/sourcedir.tar.gz.secret"
    found = statements_of(capsys, job_file(), "--iam")
    role = statements_of(capsys, job_file(), "--iam-role")

    assert [key] == fnmatch.filter([key], found["Code"]["Resource"][0])
    assert ["s3:PutObject"] == found["Code"]["Action"]
    assert any(fnmatch.filter([key], each) for each in role["Read"]["Resource"])


@pytest.mark.parametrize(
    ("flag", "who"), [("--iam-role", "its role"), ("--iam", "the user who starts")]
)
def test_policy_of_this_machine(capsys, job_file, flag, who):
    """A local job needs no permissions, and a note says so."""
    status = main(
        ["doctor", job_file('entry_point = "train.py"\ninstance_type = "local_process"'), flag]
    )
    captured = capsys.readouterr()

    assert 0 == status
    assert [] == json.loads(captured.out)["Statement"]
    assert f"note: the job runs on this machine: {who}" in captured.err


def test_policy_of_data_for_this_machine(capsys, job_file, session):
    """A local job may read the bucket of its data, but no bucket whose name begins the same."""
    path = job_file("""
        entry_point = "train.py"
        instance_type = "local_process"
        inputs = "s3://data"
        """)

    assert ["arn:aws:s3:::data/*"] == statements_of(capsys, path, "--iam")["Data"]["Resource"]


HERE = "arn:aws:kms:eu-west-1:123456789012"
THERE = "arn:aws:kms:eu-west-1:999999999999"


@pytest.mark.parametrize(
    ("key", "resource", "alias"),
    [
        ("alias/models", f"{HERE}:key/*", "alias/models"),
        (f"{THERE}:alias/models", f"{THERE}:key/*", "alias/models"),
        ("1234-ab", f"{HERE}:key/1234-ab", None),
        (f"{THERE}:key/1234-ab", f"{THERE}:key/1234-ab", None),
    ],
)
def test_policy_of_a_key_is_for_that_key_alone(capsys, job_file, session, key, resource, alias):
    """An alias is a condition, because IAM takes none as a resource of these actions."""
    given = settings(f"output_kms_key={key}", f"volume_kms_key={key}")
    user = statements_of(capsys, job_file(), "--iam", *given)
    role = statements_of(capsys, job_file(), "--iam-role", *given)
    condition = {"ForAnyValue:StringEquals": {"kms:ResourceAliases": alias}} if alias else None

    for statement in (user["Key"], role["Key"], role["Volume"]):
        assert [resource] == statement["Resource"]
        assert condition == statement.get("Condition")


def test_policy_without_an_account(capsys, job_file):
    """Without credentials the placeholder <account> stays, and a note says so."""
    status = main(["doctor", job_file(), "--iam", "--region", "cn-north-1"])
    captured = capsys.readouterr()

    main(["doctor", job_file(), "--iam"])

    assert "replace <region>" in capsys.readouterr().err
    assert 0 == status
    assert "arn:aws-cn:iam::<account>:role/training" in captured.out
    assert "replace <account>" in captured.err


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (["--iam"], "--iam has no FILE"),
        (["--iam-role"], "--iam-role has no FILE"),
        (["--set", "nonsense"], "--set 'nonsense' has no FILE"),
        (["--iam", "--iam-role"], "--iam and --iam-role are passed together"),
    ],
)
def test_policy_of_nothing(capsys, given, said):
    """A policy needs a job file, and is either the user's or the role's."""
    assert 2 == main(["doctor", *given])
    assert said in capsys.readouterr().err
