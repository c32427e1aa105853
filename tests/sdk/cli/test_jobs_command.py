# SPDX-License-Identifier: Apache-2.0
"""`sagemaker-dist submit | logs | describe | stop | local`: jobs from the command line."""

import json
import os
import signal
import subprocess
import sys

import boto3
import pytest
from moto import mock_aws

from sagemaker_dist.cli import find_job, job_commands, main
from sagemaker_dist.cli.local import local_changes
from sagemaker_dist.errors import SetupError
from sagemaker_dist.jobs.job_file import read_job_file
from sagemaker_dist.runners import LocalRunner
from sagemaker_dist.runners.sagemaker import SageMakerRunner

HERE = """
    entry_point = "train.py"
    instance_type = "local_process"
    instance_count = 2
    job_name = "here"
    """
ASK = ["--region", "eu-west-1"]


@pytest.fixture
def aws(monkeypatch):
    """Create a mock AWS account with a bucket."""
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "x")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "y")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "eu-west-1")
    with mock_aws():
        place = {"LocationConstraint": "eu-west-1"}
        boto3.client("s3").create_bucket(Bucket="models", CreateBucketConfiguration=place)
        yield boto3.client("sagemaker")


def test_submit_here_and_look(capsys, job_file):
    """The commands find a job of this machine by its name."""
    path = job_file(HERE)
    status = main(["submit", path, "--wait"])
    said = capsys.readouterr().out

    assert 0 == status
    assert "[algo-1] hello from algo-1\n" in said
    assert said.splitlines()[-1].startswith("Completed after ")

    assert 0 == main(["logs", "here"])
    assert {"[algo-1] hello from algo-1", "[algo-2] hello from algo-2"} <= set(
        capsys.readouterr().out.splitlines()
    )

    assert 0 == main(["logs", "here", "--follow"])
    assert "hello from algo-2\n" in capsys.readouterr().out

    assert 0 == main(["describe", "here"])
    assert "status        Completed\nhosts         2 x local_process\n" in capsys.readouterr().out

    assert 0 == main(["describe", "here", "--json"])
    assert "Completed" == json.loads(capsys.readouterr().out)["TrainingJobStatus"]

    assert 0 == main(["stop", "here"])
    assert "here: Completed\n" == capsys.readouterr().out


def test_submit_for_programs(capsys, job_file):
    """--json prints the name; with --wait, it prints the last description only."""
    path = job_file(HERE)

    assert 0 == main(["submit", path, "--json"])
    assert {"name": "here"} == json.loads(capsys.readouterr().out)

    assert 0 == main(["submit", path, "--json", "--wait", "--set", "job_name=there"])
    assert "Completed" == json.loads(capsys.readouterr().out)["TrainingJobStatus"]


@pytest.mark.parametrize("more", [[], ["--json"]])
def test_a_job_that_fails(capsys, job_file, tmp_path, more):
    """A job that fails makes `submit --wait` exit with 1."""
    path = job_file(HERE)
    (tmp_path / "train.py").write_text("raise SystemExit('no data')")
    status = main(["submit", path, "--wait", *more])

    assert 1 == status
    assert "Failed" in capsys.readouterr().out


def test_name_that_exists(capsys, job_file):
    """A second job of the same name is refused as a wrong option."""
    path = job_file(HERE)
    main(["submit", path, "--wait"])
    status = main(["submit", path])

    assert 2 == status
    assert "a job of this name exists" in capsys.readouterr().err


def test_progress_bars_in_a_pipe(capsys, job_file, tmp_path):
    """Of a progress bar, a pipe gets only the last state, on a line of its own."""
    path = job_file(HERE)
    (tmp_path / "train.py").write_text("print('1/2', end='\\r', flush=True)\nprint('2/2')\n")
    main(["submit", path, "--wait"])
    capsys.readouterr()
    main(["logs", "here"])
    said = capsys.readouterr().out

    assert "\r" not in said
    assert "[algo-1] 2/2\n" in said


def test_on_sagemaker(capsys, job_file, aws):
    """A job that this machine does not have is looked up on SageMaker."""
    text = """
        entry_point = "train.py"
        role = "arn:aws:iam::123456789012:role/training"
        image_uri = "123456789012.dkr.ecr.eu-west-1.amazonaws.com/mine:1"
        output_path = "s3://models/out"
        instance_type = "ml.c5.xlarge"
        job_name = "there"
        """
    status = main(["submit", job_file(text), *ASK])

    assert 0 == status
    assert "there\n" == capsys.readouterr().out
    assert "there" == aws.describe_training_job(TrainingJobName="there")["TrainingJobName"]

    assert 0 == main(["describe", "there"])
    captured = capsys.readouterr()
    assert "hosts         1 x ml.c5.xlarge\n" in captured.out
    assert "note: this machine has no job 'there'; looking for it on SageMaker\n" == captured.err


@pytest.mark.parametrize("command", ["logs", "describe"])
def test_a_job_of_nobody(capsys, aws, command):
    """A name that neither this machine nor SageMaker has is an error."""
    status = main([command, "nobody"])

    assert 1 == status
    assert "nobody" in capsys.readouterr().err.splitlines()[-1]


@pytest.mark.parametrize(
    ("more", "lacks"), [({}, "region"), ({"AWS_DEFAULT_REGION": "eu-west-1"}, "credentials")]
)
@pytest.mark.parametrize("command", ["describe", "debug"])
def test_a_job_of_nobody_without_aws(capsys, monkeypatch, job_file, command, more, lacks):
    """The error begins with this machine, and says why SageMaker was not checked."""
    job_file()
    for name, value in more.items():
        monkeypatch.setenv(name, value)
    assert 1 == main([command, "nobody"])
    (said,) = capsys.readouterr().err.splitlines()
    begin = "sagemaker-dist: this machine has no job 'nobody': SageMaker was not checked"

    assert said.startswith(begin)
    assert lacks in said


def test_local(capsys, job_file, tmp_path):
    """`local` runs a job file for SageMaker, and notes the options that it leaves out."""
    (tmp_path / "data").mkdir()
    path = job_file()
    data = ["--set", "inputs={ train = 'file://data' }"]
    status = main(["local", path, *data])
    captured = capsys.readouterr()

    assert 0 == status, captured.err
    assert "note: left out, only for SageMaker: role, security_group_ids, subnets\n" in (
        captured.err
    )
    assert (
        "output_path is in S3, so it is left out: the model is written to the job's folder"
        in captured.err
    )
    assert "[algo-2] hello from algo-2" in captured.out


def test_local_refuses_what_it_cannot_do(capsys, job_file):
    """`local` refuses a channel in a file system."""
    status = main(["local", job_file()])

    assert 2 == status
    assert (
        "job.toml:26: channel 'home' reads '/mount/data' of file system" in capsys.readouterr().err
    )


def test_local_detached(capsys, job_file):
    """`local --detach` prints the name and returns at once."""
    job = ["--detach", "--hosts", "1", "--set", "job_name=here"]
    status = main(["local", job_file(HERE), *job])
    runner = LocalRunner()
    list(runner.logs("here", follow=True))

    assert 0 == status
    assert "here\n" == capsys.readouterr().out
    assert 1 == runner.describe("here")["ResourceConfig"]["InstanceCount"]


@pytest.mark.parametrize(
    ("text", "kind", "changes"),
    [
        ("image_uri = 'mine'", "local_process", {"image_uri": None, "instance_count": None}),
        ("image_uri = 'mine'", "local", {"instance_count": None}),
        (
            "[[instance_groups]]\ninstance_count = 2\n[[instance_groups]]\ninstance_count = 1",
            "local",
            {"instance_groups": None, "instance_count": 3},
        ),
        (
            "checkpoint_s3_uri = 's3://a'\ncheckpoint_local_path = '/opt/ml/x'",
            "local",
            {
                "checkpoint_s3_uri": None,
                "checkpoint_local_path": None,
                "instance_count": None,
            },
        ),
        ("checkpoint_s3_uri = 'file:///a'", "local", {"instance_count": None}),
        (
            "job_name = 'train'",
            "local",
            {"job_name": None, "base_job_name": "train", "instance_count": None},
        ),
        (
            "job_name = 'train'\nbase_job_name = 'mine'",
            "local",
            {"job_name": None, "base_job_name": "mine", "instance_count": None},
        ),
    ],
)
def test_what_changes_here(job_file, text, kind, changes):
    """`local` adds up the hosts of all groups, drops image_uri without containers, and does not
    write to S3.
    """
    found, _ = local_changes(read_job_file(job_file(text)), kind)

    assert {**changes, "instance_type": kind} == found


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_interrupted(job_file, tmp_path, number, status):
    """Ctrl-C or SIGTERM ends the command and stops the job; its model is saved."""
    path = job_file(HERE)
    (tmp_path / "train.py").write_text("import time\nprint('begun', flush=True)\ntime.sleep(100)")
    job = ["local", path, "--set", "job_name=here"]
    command = [sys.executable, "-m", "sagemaker_dist.cli", *job]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=os.environ
    ) as process:
        while "begun" not in process.stdout.readline():
            pass
        process.send_signal(number)
        said, errors = process.communicate(timeout=60)

    assert status == process.returncode, errors
    assert "note: stopping here:" in errors
    assert "goes on" not in said + errors
    assert "Stopped" == LocalRunner().describe("here")["TrainingJobStatus"]


@pytest.mark.parametrize("more", [[], ["--json"]])
@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_waiting_that_is_interrupted(job_file, tmp_path, number, status, more):
    """Ctrl-C ends only the wait; the note has commands that stop and follow the job."""
    path = job_file(HERE)
    (tmp_path / "train.py").write_text(
        "import pathlib, time\n"
        f"pathlib.Path({str(tmp_path / 'begun')!r}).write_text('x')\n"
        "time.sleep(100)"
    )
    os.mkfifo(tmp_path / "begun")
    command = [sys.executable, "-m", "sagemaker_dist.cli", "submit", path, "--wait", *more]
    one = ["--set", "instance_count=1"]
    with subprocess.Popen(
        [*command, *one], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=os.environ
    ) as process:
        (tmp_path / "begun").read_bytes()
        process.send_signal(number)
        said, errors = process.communicate(timeout=60)
    runner = LocalRunner()
    goes_on = runner.describe("here")["TrainingJobStatus"]
    runner.stop("here", now=True)
    list(runner.logs("here", follow=True))

    assert status == process.returncode, errors
    assert "InProgress" == goes_on
    assert (
        "note: here keeps running. sagemaker-dist stop here ends it, sagemaker-dist logs here"
        " --follow shows it." in errors
    )
    assert "job.stop()" not in said + errors


def test_commands_for_a_job_elsewhere():
    """The commands in the note have the job's region and profile."""
    said = job_commands._still_running("a", "eu-west-1", "mine")

    assert "sagemaker-dist stop a --region eu-west-1 --profile mine ends it" in said
    assert "sagemaker-dist logs a --follow --region eu-west-1 --profile mine shows it." in said


def test_local_is_called_otherwise(capsys, job_file):
    """`local` drops job_name, and gives the local job a name with the time."""
    status = main(["local", job_file(HERE)])
    captured = capsys.readouterr()

    assert 0 == status
    assert "note: job_name is left out" in captured.err
    assert not LocalRunner().exists("here")
    assert captured.out.startswith("here-20")


@pytest.mark.parametrize(
    ("there", "chosen", "said"),
    [
        ("InProgress", "SageMaker", "this is SageMaker's, which is running"),
        (
            "Completed",
            "this machine",
            ("SageMaker's job of this name has ended too: --region eu-west-1 shows it"),
        ),
        (None, "this machine", ""),
        ("AccessDeniedException", "this machine", "of this machine has ended; SageMaker was not"),
    ],
)
def test_a_name_of_both(capsys, job_file, aws, monkeypatch, there, chosen, said):
    """If both sides have a job of a name, the one that still runs is chosen."""
    main(["submit", job_file(HERE), "--wait"])
    monkeypatch.setattr(SageMakerRunner, "exists", lambda *_: there is not None)
    description = {"TrainingJobStatus": there}

    def describe(self, name):
        if there == "AccessDeniedException":
            raise SetupError("SageMaker did not describe it", there, "Allow it")
        return description

    monkeypatch.setattr(SageMakerRunner, "describe", describe)
    capsys.readouterr()
    found = find_job.runner_of("here", None, None)

    assert chosen == ("SageMaker" if isinstance(found, SageMakerRunner) else "this machine")
    assert said in capsys.readouterr().err


def test_a_job_that_goes_on_here(job_file, monkeypatch):
    """SageMaker is not called if the local job of this name still runs."""
    monkeypatch.setattr(LocalRunner, "exists", lambda *_: True)
    monkeypatch.setattr(LocalRunner, "describe", lambda *_: {"TrainingJobStatus": "InProgress"})
    monkeypatch.setattr(find_job, "_choose", None)

    assert isinstance(find_job.runner_of("here", None, None), LocalRunner)


@pytest.mark.parametrize("command", ["describe", "logs", "stop"])
@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "a" * 300, "-a"])
def test_names_that_are_none(capsys, command, name):
    """Invalid names are refused before AWS is called."""
    status = main([command, "--", name])
    said = capsys.readouterr().err

    assert 2 == status
    assert said.startswith(f"sagemaker-dist: NAME is {name!r}: a job name has 1 to 63")
