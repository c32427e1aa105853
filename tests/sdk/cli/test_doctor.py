# SPDX-License-Identifier: Apache-2.0
"""`sagemaker-dist doctor`: each row for an account that has a resource, lacks it, or denies
access.
"""

import json
import re
from datetime import datetime, timedelta, timezone

import boto3
import pytest
from accounts import REGION, allow, answers
from botocore.credentials import RefreshableCredentials
from botocore.exceptions import ClientError, EndpointConnectionError

from sagemaker_dist.cli import main
from sagemaker_dist.cli.doctor import account, command, machine
from sagemaker_dist.cli.doctor.rows import aws_rows, fail, ok, warn
from sagemaker_dist.cli.hosts import Hosts
from sagemaker_dist.packaging import gpu_faults
from sagemaker_dist.packaging.image_labels import ImageLabels

TRUST = {
    "Version": "2012-10-17",
    "Statement": [
        {
            "Effect": "Allow",
            "Principal": {"Service": "sagemaker.amazonaws.com"},
            "Action": "sts:AssumeRole",
        }
    ],
}


def test_credentials(session):
    """The row shows the caller's ARN, the method, and how long the credentials are valid."""
    row = account.credentials_row(boto3.Session(region_name=REGION))

    assert "ok" == row.status
    assert row.text.startswith("arn:aws:sts::123456789012:")
    assert row.text.endswith(", found by env")


@pytest.mark.parametrize(("minutes", "status"), [(20, "warn"), (180, "ok")])
def test_credentials_that_end(session, minutes, status):
    """Credentials that expire within an hour give a warning."""
    real, now = boto3.Session(region_name=REGION), datetime.now(timezone.utc)
    ends = now + timedelta(minutes=minutes)
    real._session._credentials = RefreshableCredentials("x", "y", "z", ends, dict, "sso")
    row = account.credentials_row(real, now)

    assert status == row.status
    assert f"by sso, valid for {minutes} minutes" in row.text


def aws_config(tmp_path, text):
    folder = tmp_path / "home" / ".aws"
    folder.mkdir(parents=True)
    (folder / "config").write_text(text)


def test_credentials_of_a_process_that_fails(capsys, job_file, tmp_path, quiet_machine):
    """A credential_process that fails gives a failed row, and AWS is not called."""
    path = job_file()
    aws_config(tmp_path, "[default]\nregion = eu-west-1\ncredential_process = false\n")
    status = main(["doctor", path, "--json"])
    rows = {row["name"]: row for row in json.loads(capsys.readouterr().out)}

    assert 1 == status
    assert "fail" == rows["credentials"]["status"]
    assert "custom-process" in rows["credentials"]["text"]


@pytest.mark.parametrize("command", ["doctor", "plan", "submit", "describe"])
def test_settings_of_aws_that_cannot_be_read(capsys, job_file, tmp_path, command):
    """A broken ~/.aws/config gives an error without a traceback."""
    path = job_file()
    aws_config(tmp_path, "[default\n")
    status = main([command, "a-job" if command == "describe" else path])

    assert 1 == status
    assert "config" in capsys.readouterr().err.splitlines()[-1]


def test_brackets(capsys):
    """Brackets in a value are printed as they are, not read as rich's markup."""
    row = fail("subnet", "[subnet-1] and [/opt/ml] " + "word " * 20 + "[/opt/ml]", "Name [others]")
    command._show([row])
    said = capsys.readouterr().out

    assert "[subnet-1] and [/opt/ml]" in said
    assert 2 == said.count("[/opt/ml]")
    assert "Name [others]" in said


@pytest.mark.parametrize(
    ("code", "status", "says"),
    [
        ("ExpiredToken", "fail", "ExpiredToken"),
        ("AccessDenied", "unknown", "sts:GetCallerIdentity is not allowed"),
        ("Throttling", "unknown", "Throttling"),
    ],
)
def test_refusals(session, code, status, says):
    """Expired credentials are "fail"; a denied call is "unknown" and names the IAM action."""
    with answers(session, "sts", ("get_caller_identity", code)):
        sts = session.client("sts")
        row = next(aws_rows("credentials", "sts:GetCallerIdentity", sts.get_caller_identity))

    assert status == row.status
    assert says in row.text


def test_no_network():
    """An endpoint that cannot be reached gives "unknown"."""

    def ask():
        raise EndpointConnectionError(endpoint_url="https://sts")

    assert "unknown" == next(aws_rows("credentials", "sts:GetCallerIdentity", ask)).status


@pytest.mark.parametrize(
    ("trust", "status", "says"),
    [
        (TRUST, "ok", "trusts SageMaker"),
        ({"Version": "2012-10-17", "Statement": []}, "fail", "does not trust"),
        (None, "fail", "there is no role 'training'"),
    ],
)
def test_role(session, trust, status, says):
    """The role must exist, and its trust policy must allow SageMaker."""
    if trust is not None:
        document = json.dumps(trust)
        iam = session.client("iam")
        iam.create_role(RoleName="training", AssumeRolePolicyDocument=document)
    (row,) = account.role_rows(session, "training")

    assert (status, True) == (row.status, says in row.text)


def test_role_that_may_not_be_asked_for(session):
    """A denied iam:GetRole is named in the row."""
    with answers(session, "iam", ("get_role", "AccessDenied")):
        (row,) = account.role_rows(session, "training")

    assert ("unknown", "iam:GetRole is not allowed") == (row.status, row.text)


@pytest.mark.parametrize(
    ("image", "status", "says"),
    [
        (None, "fail", "there is no ECR repository 'sagemaker-dist'"),
        ("mine:1", "unknown", "mine:1 is not in ECR"),
        ("123456789012.dkr.ecr.us-east-1.amazonaws.com/a:1", "fail", "is in us-east-1"),
        ("123456789012.dkr.ecr.eu-west-1.amazonaws.com/mine:1", "fail", "there is no 1234"),
    ],
)
def test_image(session, image, status, says):
    """The row names the image that the job would use."""
    (row,) = account.image_rows(session, "torch", image)

    assert (status, True) == (row.status, says in row.text)


def test_image_that_may_not_be_asked_for(session):
    """An AWS error that caused a SetupError is reported as a denied action, too."""
    with answers(session, "ecr", ("describe_repositories", "AccessDeniedException")):
        (row,) = account.image_rows(session, "torch", None)

    assert ("unknown", "ecr:DescribeRepositories is not allowed") == (row.status, row.text)


def test_gpus_without_code_in_the_image(session, monkeypatch):
    """Each instance type without code is a row; what is not known is none."""
    labels = {"sagemaker-dist.framework": "torch", "sagemaker-dist.gpu-code": "sm_80"}
    known = {"mine:1": ImageLabels(labels=labels)}
    monkeypatch.setattr(gpu_faults, "ecr_labels", lambda _, image: known.get(image))
    types = ["ml.p3.2xlarge", "ml.p4d.24xlarge"]
    (row,) = account.gpu_code_rows(session, "torch", "mine:1", types)

    assert ("fail", "GPU code") == (row.status, row.name)
    assert "V100" in row.text
    assert [] == list(account.gpu_code_rows(session, "torch", "other:1", types))
    assert [] == list(account.gpu_code_rows(session, "torch", None, types))  # no repository


def test_buckets(session):
    """A bucket may exist, be in another region, be missing, or deny access."""
    here = {"CreateBucketConfiguration": {"LocationConstraint": REGION}}
    session.client("s3").create_bucket(Bucket="here-it-is", **here)
    boto3.client("s3", region_name="us-east-1").create_bucket(Bucket="there-it-is")
    rows = list(account.bucket_rows(session, ["here-it-is", "there-it-is", "nowhere-at-all"]))

    assert ["ok", "fail", "fail"] == [row.status for row in rows]
    assert "the bucket is in us-east-1, but the job runs in eu-west-1" == rows[1].text
    assert "Run: aws s3 mb s3://nowhere-at-all" == rows[2].hint
    with answers(session, "s3", ("head_bucket", "403")):
        (row,) = account.bucket_rows(session, ["hidden-one"])
    assert ("unknown", "s3:ListBucket is not allowed") == (row.status, row.text)


@pytest.mark.parametrize(
    ("value", "is_spot", "status"), [(2, False, "ok"), (1, False, "fail"), (2, True, "unknown")]
)
def test_quota(session, value, is_spot, status):
    """Quotas are the account's for training jobs or spot jobs; an unlisted one is "unknown"."""
    name = "ml.p4d.24xlarge for training job usage"
    quota = {"QuotaName": name, "QuotaCode": "L-1", "Value": float(value)}
    hosts = Hosts(type="ml.p4d.24xlarge", count=2, group=None, ranks=8, instance=None)
    with answers(session, "service-quotas", ("list_service_quotas", {"Quotas": [quota]})):
        (row,) = account.quota_rows(session, [hosts], is_spot=is_spot)

    assert status == row.status
    assert ("--quota-code L-1 --desired-value 2" in row.hint) == (status == "fail")


def test_quota_that_may_not_be_asked_for(session):
    """The row names the action as IAM spells it."""
    hosts = Hosts(type="ml.p4d.24xlarge", count=2, group=None, ranks=8, instance=None)
    refused = ("list_service_quotas", "AccessDeniedException")
    with answers(session, "service-quotas", refused):
        (row,) = account.quota_rows(session, [hosts], is_spot=False)

    assert "servicequotas:ListServiceQuotas is not allowed" == row.text


@pytest.mark.parametrize(("local_type", "status"), [(None, "warn"), ("local", "fail")])
def test_no_engine(monkeypatch, local_type, status):
    """A missing Docker engine fails only for jobs in containers."""
    monkeypatch.setenv("DOCKER_HOST", "tcp://127.0.0.1:1")
    rows = list(machine.machine_rows(framework="torch", local_type=local_type))

    assert status == rows[-1].status
    assert "docker" == rows[-1].name
    assert "no Docker engine answers" in rows[-1].text


def whole_account(session, vpc):
    """Create all resources of the job file; moto has neither quotas nor file systems."""
    allow(session, vpc["group"], vpc["group"])
    document = json.dumps(TRUST)
    session.client("iam").create_role(RoleName="training", AssumeRolePolicyDocument=document)
    for bucket in ("models", "data-of-ours"):
        place = {"LocationConstraint": REGION}
        session.client("s3").create_bucket(Bucket=bucket, CreateBucketConfiguration=place)


@pytest.fixture
def quiet_machine(monkeypatch):
    rows = [ok("python", "3.11.7 on Linux x86_64"), ok("boto3", "1.44.5")]
    monkeypatch.setattr(machine, "machine_rows", lambda **_: iter(rows))


def job_settings(vpc):
    settings = (
        f"subnets=['{vpc['subnet']}']",
        f"security_group_ids=['{vpc['group']}']",
        "inputs={ train = 's3://data-of-ours' }",
        "image_uri=public.ecr.aws/mine:1",
    )
    return [part for each in settings for part in ("--set", each)]


def test_text(capsys, job_file, session, vpc, golden, quiet_machine, monkeypatch):
    """Rows fit in 80 columns with their hints; commands are not wrapped, so that they can be
    copied.
    """
    whole_account(session, vpc)
    quota = {"QuotaCode": "L-6E8F1A2B", "Value": 0.0}
    name = "ml.p4d.24xlarge for training job usage"
    monkeypatch.setattr(account, "_quotas", lambda _: {name: quota})
    status = main(["doctor", job_file(), "--region", REGION, *job_settings(vpc)])
    said = capsys.readouterr().out
    said = re.sub(r"rtb-\w+", "rtb-0123456789abcdef0", said)
    for name in ("vpc", "subnet", "group"):
        prefix = vpc[name].partition("-")[0]
        said = said.replace(vpc[name], f"{prefix}-0123456789abcdef0"[: len(vpc[name])])

    assert 1 == status
    assert [] == [line for line in said.splitlines() if len(line) > 80 and "Run:" not in line]
    golden("doctor.txt", said)


def test_json(capsys, job_file, session, vpc, quiet_machine, monkeypatch):
    """--json prints the rows; a failed row gives exit status 1."""
    monkeypatch.setattr(account, "_quotas", lambda _: {})
    status = main(["doctor", job_file(), "--region", REGION, "--json", *job_settings(vpc)])
    rows = json.loads(capsys.readouterr().out)

    assert 1 == status
    assert {"name", "status", "text", "hint", "kind", "about"} == set(rows[0])
    assert "there is no role 'training'" in {row["text"] for row in rows}


def test_without_credentials(capsys, job_file, quiet_machine):
    """Without credentials AWS is not called, and the rows say so."""
    status = main(["doctor", job_file(), "--region", REGION])
    said = capsys.readouterr().out

    assert 1 == status
    assert "fail     credentials  no credentials were found\n" in said
    assert "quotas and network" in said


@pytest.mark.parametrize(
    ("runtime", "more", "status", "region"),
    [
        (ok("local runtime", "1.0"), [], 0, "warn"),
        (warn("local runtime", "not installed", ""), [], 1, "warn"),  # no job can run at all
        (ok("local runtime", "1.0"), ["--profile", "default"], 1, "fail"),
    ],
)
def test_aws_that_is_not_configured(capsys, monkeypatch, tmp_path, runtime, more, status, region):
    """Without FILE, only what --profile or --region asks AWS for makes the command fail."""
    aws_config(tmp_path, "[default]\n")
    monkeypatch.setattr(machine, "machine_rows", lambda **_: iter([runtime]))

    assert status == main(["doctor", "--json", *more])
    rows = {row["name"]: row for row in json.loads(capsys.readouterr().out)}
    assert region == rows["region"]["status"]
    assert (region == "warn") == ("only jobs on SageMaker need it" in rows["credentials"]["text"])


def test_of_this_machine(capsys, job_file, quiet_machine):
    """AWS is not called for a local job."""
    path = job_file('entry_point = "train.py"\ninstance_type = "local_process"')

    assert 0 == main(["doctor", path])
    assert capsys.readouterr().out.endswith("\n\n2 ok\n")


def test_faulty_file(capsys, job_file):
    """A wrong job file exits with 2."""
    assert 2 == main(["doctor", job_file(), "--set", "instance_count=0"])
    assert "instance_count is 0" in capsys.readouterr().err


def test_bucket_of_the_code(capsys, job_file, session, vpc, quiet_machine, monkeypatch):
    """The bucket of code_location is checked, too."""
    monkeypatch.setattr(account, "_quotas", lambda _: {})
    job = [*job_settings(vpc), "--set", "code_location=s3://code-of-ours"]
    main(["doctor", job_file(), "--region", REGION, "--json", *job])
    rows = json.loads(capsys.readouterr().out)

    assert "s3 code-of-ours" in {row["name"] for row in rows}


def test_every_status_is_counted(capsys):
    """An unknown AWS error gives "unknown", and the other checks continue."""
    error = ClientError({"Error": {}}, "GetRole")

    def ask():
        raise error

    command._show([ok("python", "3.11"), *aws_rows("role", "iam:GetRole", ask)])

    assert capsys.readouterr().out.endswith("1 ok, 1 unknown\n")
