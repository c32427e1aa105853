# SPDX-License-Identifier: Apache-2.0
"""`sagemaker-dist plan`: the job that would run, shown without a call to AWS."""

import json
import os
import re
import subprocess
import sys

import pytest
from moto import mock_aws
from terminals import shown_in_a_terminal

from sagemaker_dist.cli import main
from sagemaker_dist.jobs.job_file import read_job_file


@pytest.fixture(autouse=True)
def _region(monkeypatch):
    monkeypatch.setenv("AWS_DEFAULT_REGION", "eu-west-1")


def test_text(capsys, job_file, golden, tmp_path):
    """Output fits in 80 columns, except for longer names, which are not broken."""
    status = main(["plan", job_file()])
    said = capsys.readouterr().out.replace(str(tmp_path), "/home/me")

    assert 0 == status
    assert [] == [line for line in said.splitlines() if len(line) > 80 and " " in line[14:]]
    golden("plan.txt", said)


def test_json(capsys, job_file):
    """--json has the request, hosts with facts, ranks, warnings and AWS permissions."""
    status = main(["plan", job_file(), "--json"])
    document = json.loads(capsys.readouterr().out)

    assert 0 == status
    assert {
        *("request", "placeholders", "hosts", "ranks", "split", "warnings", "cost_limit"),
        "permissions",
    } == set(document)
    assert "arn:aws:iam::<account>:role/training" == document["request"]["RoleArn"]
    assert ["<account>"] == list(document["placeholders"])
    assert (16, 8) == (document["ranks"], document["hosts"][0]["ranks_per_host"])
    assert "A100" == document["hosts"][0]["instance"]["accelerator"]
    assert "smdist copies gradients" in document["warnings"][0]


@pytest.mark.parametrize(
    ("settings", "shown"),
    [
        (["distribution.smdist.dataparallel.encrypt=true"], "encrypt=True; ranks prove"),
        (["environment.SMDIST_INTEGRITY=mac"], "integrity='mac', encrypt=False; ranks prove"),
        (["source_dir=s3://theirs/code.tar.gz", "entry_point=train.py"], "no secret is uploaded"),
    ],
)
def test_protection(capsys, job_file, settings, shown):
    """A row says how connections between hosts are protected, and whether there is a secret."""
    status = main(["plan", job_file(), *[part for each in settings for part in ("--set", each)]])
    words = " ".join(capsys.readouterr().out.split())

    assert 0 == status
    assert shown in words
    assert "protection integrity=" in words


def test_no_protection_without_our_engine(capsys, job_file):
    status = main(["plan", job_file(), "--set", "distribution={}"])

    assert 0 == status
    assert "\nprotection " not in capsys.readouterr().out


@mock_aws
def test_request_is_that_of_submit(capsys, job_file):
    """If the file gives all values that AWS would supply, plan prints exactly submit's request."""
    path = job_file()
    whole = [
        "role=arn:aws:iam::123456789012:role/training",
        "image_uri=123456789012.dkr.ecr.eu-west-1.amazonaws.com/mine:1",
    ]
    given = [part for each in whole for part in ("--set", each)]
    main(["plan", path, "--request", *given])

    assert read_job_file(path, whole).job().request() == json.loads(capsys.readouterr().out)


def test_without_a_region(capsys, job_file, monkeypatch):
    """A missing region becomes a placeholder and is no error."""
    monkeypatch.delenv("AWS_DEFAULT_REGION")
    status = main(["plan", job_file()])
    said = capsys.readouterr().out

    assert 0 == status
    assert "<account>.dkr.ecr.<region>.amazonaws.com/" in said
    assert "no region is set" in said


@mock_aws
def test_asked(capsys, job_file, monkeypatch):
    """--ask calls AWS; its refusal is an error."""
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "x")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "y")
    status = main(["plan", job_file(), "--ask", "--set", "output_path=s3://models"])

    assert 1 == status
    assert "there is no ECR repository" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        (["instance_type=ml.c5.xlarge"], ["2 hosts x 1 rank = 2", "accelerators  none"]),
        (["distribution.smdist.dataparallel.processes_per_host=4"], ["2 hosts x 4 ranks = 8"]),
        (
            ["instance_count=1"],
            ["1 host x 8 ranks = 8", "8 A100, 40 GiB each, compute capability 8.0\n"],
        ),
        (["max_run=5400"], ["1 hour 30 minutes"]),
        (["use_spot_instances=true", "max_wait=86400"], ["24 hours, on Spot instances"]),
        (["distribution={}"], ["2 hosts, no ranks"]),
    ],
)
def test_facts(capsys, job_file, settings, said):
    """Ranks and time limit follow from the file and the command line."""
    given = [part for each in settings for part in ("--set", each)]
    main(["plan", job_file(), *given])
    out = capsys.readouterr().out

    assert [] == [each for each in said if each not in out]


def test_secrets(capsys, job_file):
    """Text output masks values that look secret, as the launcher's log does; --json shows them."""
    path = job_file("""
        entry_point = "train.py"
        role = "training"
        instance_type = "ml.c5.xlarge"

        [environment]
        WANDB_API_KEY = "hush-1"
        PROXY = "http://me:hush-2@proxy:80"

        [hyperparameters]
        max_tokens = 512
        db = { password = "hush-3", host = "there" }
        """)
    main(["plan", path])
    said = capsys.readouterr().out
    main(["plan", path, "--json"])
    document = capsys.readouterr().out

    assert "hush" not in said
    assert "WANDB_API_KEY  ***\n" in said
    assert "http://***@proxy:80" in said
    assert "512" in said
    assert "there" in said
    assert {"hush-1", "hush-2", "hush-3"} == set(re.findall("hush-.", document))


def test_brackets(capsys, job_file):
    """Brackets in an S3 URI are printed as they are, not read as rich's markup."""
    path = job_file("""
        entry_point = "train.py"
        role = "training"
        instance_type = "ml.c5.xlarge"
        inputs = { train = "s3://data/[/b]/[red]x" }
        """)
    status = main(["plan", path])

    assert 0 == status
    assert "s3://data/[/b]/[red]x" in capsys.readouterr().out


def test_groups(capsys, job_file):
    """Of several instance groups, only those of the distribution have ranks."""
    path = job_file("""
        entry_point = "train.py"
        role = "training"
        distribution = { smdist = { dataparallel = {} }, instance_groups = ["gpu"] }
        [[instance_groups]]
        instance_group_name = "gpu"
        instance_type = "ml.g5.12xlarge"
        instance_count = 2
        [[instance_groups]]
        instance_group_name = "cpu"
        instance_type = "ml.c5.xlarge"
        instance_count = 3
        """)
    status = main(["plan", path])
    captured = capsys.readouterr()

    assert 0 == status, captured.err
    assert "2 hosts x 4 ranks + 3 hosts, no ranks = 8" in captured.out
    assert "\ngpu ml.g5.12xlarge\n" in captured.out


MODEL = """
entry_point = "train.py"
instance_type = "local_process"
instance_count = 4
[distribution.smdist.modelparallel]
pipeline_parallel_degree = 4
microbatches = 4
global_batch_size = 64
[distribution.smdist.modelparallel.engine]
processes_per_host = 2
"""


def test_a_model_that_is_split(capsys, job_file):
    """The plan of a split model shows 2 replicas of 4 stages, and how 640 samples become 10
    steps.
    """
    path = job_file(MODEL)
    status = main(["plan", path])
    captured = capsys.readouterr()
    main(["plan", path, "--json"])
    document = json.loads(capsys.readouterr().out)

    assert 0 == status, captured.err
    assert "4 stages x 2 replicas = 8 ranks" in captured.out
    assert "64 = 2 replicas x 32, each in 4 microbatches of 8" in captured.out
    assert "1 per 64 samples: 10 for 640" in captured.out
    assert {"split", "batch", "steps"} == set(document["split"])


@pytest.mark.parametrize(
    ("setting", "said"),
    [
        ("smdist.modelparallel.microbatches=5", "--set: microbatches is 5 and the batch of a"),
        ("smdist.modelparallel.seed=-1", "--set: seed is -1: a seed must be an integer of 63 bits"),
        ("smdist.modelparallel.seeds=1", "Did you mean 'seed'"),
        ("smdist.modelparallel.engine.lanes=99", "--set: lanes is 99"),
        ("smdist.modelparallel.engine.lane=4", "Did you mean 'lanes'"),
    ],
)
def test_faults_of_a_model_that_is_split(capsys, job_file, setting, said):
    """Faults name the line of the file, or the option of the command line."""
    status = main(["plan", job_file(MODEL), "--set", f"distribution.{setting}"])
    error = " ".join(capsys.readouterr().err.split())

    assert 2 == status
    assert said in error


def test_of_this_machine(capsys, job_file):
    """The plan of a local job has no role and no AWS calls."""
    path = job_file('entry_point = "train.py"\ninstance_type = "local_process"')
    status = main(["plan", path])
    said = capsys.readouterr().out

    assert 0 == status
    assert "role" not in said
    assert "AWS" not in said


def test_faults(capsys, job_file):
    """Faults exit with 2 and are printed to standard error."""
    status = main(["plan", job_file(), "--set", "instance_count=0"])
    captured = capsys.readouterr()

    assert 2 == status
    assert captured.err.startswith("sagemaker-dist: --set: instance_count is 0")
    assert "" == captured.out


@pytest.mark.parametrize(
    ("variables", "coloured"), [({}, True), ({"NO_COLOR": "1"}, False), ({"TERM": "dumb"}, False)]
)
def test_colours_of_a_terminal(job_file, variables, coloured):
    """Output to a terminal has colours unless NO_COLOR is set."""
    command = [sys.executable, "-m", "sagemaker_dist.cli", "plan", job_file()]
    variables = {"TERM": "xterm-256color", "COLUMNS": "80", **variables}

    assert coloured == ("\x1b[33m" in shown_in_a_terminal(command, variables))


def test_no_colours_in_a_pipe(job_file):
    """Output to a pipe has no escape codes, even if TERM supports colours."""
    command = [sys.executable, "-m", "sagemaker_dist.cli", "plan", job_file()]
    environment = {**os.environ, "TERM": "xterm-256color"}
    said = subprocess.run(command, check=True, capture_output=True, env=environment).stdout

    assert b"ml.p4d.24xlarge" in said
    assert b"\x1b" not in said


def test_the_price_limit_is_no_warning(capsys, job_file):
    """The sentence about max_cost is a fact of the job, and the unknown type alone is a fault."""
    options = ["--set", "max_cost=1000", "--set", "price_per_hour=3"]
    assert 0 == main(["plan", str(job_file()), *options])
    before, _, warnings = capsys.readouterr().out.partition("Warnings")

    assert "max_cost=1000 USD pays" in before
    assert "max_cost" not in warnings
