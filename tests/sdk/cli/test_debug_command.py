# SPDX-License-Identifier: Apache-2.0
"""`sagemaker-dist debug`: of files, of a job of this machine, and of a job of SageMaker."""

import io
import json
import tarfile
import threading
import time

import boto3
import pytest
from histories import history, operation, write_histories
from moto import mock_aws

from sagemaker_dist.cli import debug_command, main
from sagemaker_dist.runners import LocalRunner

DIFFERENT = (
    history(0, [operation(1), operation(2, ended=False)]),
    history(1, [operation(1), operation(2, bytes=8, ended=False)]),
)
ASK = ["--region", "eu-west-1"]


def packed(folder):
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as archive:
        archive.add(folder, "smdist-debug")
    return buffer.getvalue()


def test_a_folder_whose_ranks_differ(tmp_path, capsys):
    folder = write_histories(tmp_path / "smdist-debug", *DIFFERENT)

    assert 1 == main(["debug", str(folder)])
    assert "group 0: ranks differ from operation 1 on\n" in capsys.readouterr().out

    assert 1 == main(["debug", str(folder), "--json"])
    (found,) = json.loads(capsys.readouterr().out)["divergences"]
    assert ("different", 1) == (found["kind"], found["sequence"])


def test_an_archive_whose_ranks_agree(tmp_path, capsys):
    folder = write_histories(tmp_path / "smdist-debug", history(0, []), history(1, []))
    (tmp_path / "output.tar.gz").write_bytes(packed(folder))

    assert 0 == main(["debug", str(tmp_path / "output.tar.gz")])
    assert "called the same operations" in capsys.readouterr().out


@pytest.mark.parametrize("name", ["./missing", "empty"])
def test_a_path_without_files_is_an_error(name, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty").mkdir()

    assert 1 == main(["debug", name])
    assert name.lstrip("./") in capsys.readouterr().err


class RunningJob:
    """A job of this machine with two hosts, whose ranks answer a request."""

    def __init__(self, root, monkeypatch):
        self.folders = [root / "here" / "hosts" / f"algo-{n}" / "output/data" for n in (1, 2)]
        for folder in self.folders:
            folder.mkdir(parents=True)
        monkeypatch.setattr(LocalRunner, "exists", lambda *_: True)
        monkeypatch.setattr(LocalRunner, "describe", lambda *_: {"TrainingJobStatus": "InProgress"})
        monkeypatch.setattr(LocalRunner, "output_data_folders", lambda *_: self.folders)
        line = "[algo-1 rank 0] smdist: operation 1 of group 0: rank 1 has not come after 10 s\n"
        monkeypatch.setattr(LocalRunner, "logs", lambda *_: iter([line, "[algo-1] other\n"]))

    def answer(self):
        for rank, folder in enumerate(self.folders):
            while not (folder / "smdist-debug.request").exists():
                time.sleep(0.01)
            own = DIFFERENT[rank] | {"written_at": time.time() + 1}
            write_histories(folder / "smdist-debug", own)


def test_a_job_that_runs_here_writes_its_files_anew(tmp_path, monkeypatch, capsys):
    job = RunningJob(tmp_path, monkeypatch)
    for folder in job.folders:
        write_histories(folder / "smdist-debug", history(0, []), history(1, []))  # of long ago
    ranks = threading.Thread(target=job.answer)
    ranks.start()
    status = main(["debug", "here"])
    ranks.join()
    said = capsys.readouterr().out

    assert 1 == status
    assert "group 0: ranks differ from operation 1 on\n" in said
    assert "rank 1 has not come after 10 s\n" in said
    assert "other" not in said


@pytest.mark.parametrize(
    ("status", "hint"),
    [
        ("Failed", "no operation between its ranks has failed"),
        ("InProgress", "a script that makes no process group never has them"),
    ],
)
def test_a_job_here_without_files_is_not_told_to_wait_in_vain(
    tmp_path, monkeypatch, capsys, status, hint
):
    RunningJob(tmp_path, monkeypatch)
    monkeypatch.setattr(LocalRunner, "describe", lambda *_: {"TrainingJobStatus": status})
    monkeypatch.setattr(LocalRunner, "output_folder", lambda *_: tmp_path)
    monkeypatch.setattr(debug_command, "_ANSWER_SECONDS", 0.1)

    assert 1 == main(["debug", "here", "--json"])
    assert hint in json.loads(capsys.readouterr().out)["error"]["hint"]


@pytest.fixture
def aws(monkeypatch):
    """Create a mock AWS account with a job that has output data."""
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "x")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "y")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "eu-west-1")
    with mock_aws():
        place = {"LocationConstraint": "eu-west-1"}
        boto3.client("s3").create_bucket(Bucket="models", CreateBucketConfiguration=place)
        boto3.client("sagemaker").create_training_job(
            TrainingJobName="there",
            RoleArn="arn:aws:iam::123456789012:role/training",
            AlgorithmSpecification={"TrainingInputMode": "File", "TrainingImage": "image"},
            OutputDataConfig={"S3OutputPath": "s3://models/jobs/"},
            ResourceConfig={
                "InstanceType": "ml.c5.xlarge",
                "InstanceCount": 2,
                "VolumeSizeInGB": 30,
            },
            StoppingCondition={"MaxRuntimeInSeconds": 60},
        )
        yield boto3.client("s3")


def write_log(text):
    logs = boto3.client("logs")
    logs.create_log_group(logGroupName="/aws/sagemaker/TrainingJobs")
    stream = {
        "logGroupName": "/aws/sagemaker/TrainingJobs",
        "logStreamName": "there/algo-1-1600000000",
    }
    logs.create_log_stream(**stream)
    event = {"timestamp": int(time.time() * 1000) + 1000, "message": text}
    logs.put_log_events(**stream, logEvents=[event])


def test_a_job_of_sagemaker_is_read_from_its_output_data(aws, tmp_path, capsys):
    folder = write_histories(tmp_path / "smdist-debug", *DIFFERENT)
    key = "jobs/there/output/output.tar.gz"
    aws.put_object(Bucket="models", Key=key, Body=packed(folder))
    write_log("[algo-1 rank 0] smdist: operation 1 of group 0: rank 1 has not come after 10 s")
    status = main(["debug", "there", *ASK])
    said = capsys.readouterr().out

    assert 1 == status
    assert "group 0: ranks differ from operation 1 on\n" in said
    assert "rank 1 has not come after 10 s" in said


def test_a_job_of_sagemaker_without_output_data_has_its_log(aws, capsys):
    write_log("[algo-1 rank 0] smdist: operation 1 of group 0: rank 1 has not come after 10 s")

    assert 0 == main(["debug", "there", *ASK, "--json"])
    report = json.loads(capsys.readouterr().out)
    assert [] == report["ranks"]
    assert "rank 1 has not come" in report["log"][0]


def test_a_job_of_sagemaker_with_neither_is_an_error_with_the_way_out(aws, capsys):
    assert 1 == main(["debug", "there", *ASK, "--json"])
    error = json.loads(capsys.readouterr().out)["error"]
    assert "no_files" == error["kind"]
    assert "docs/debugging.md" in error["hint"]
