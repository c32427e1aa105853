# SPDX-License-Identifier: Apache-2.0
"""The launcher finds the job's secret, removes what is its own, and hands it to its ranks."""

import hashlib
import hmac
import stat
from dataclasses import replace
from pathlib import Path

import boto3
import pytest
from error_fields import fields_of
from moto.server import ThreadedMotoServer

from sagemaker_dist.contract import DataParallel
from sagemaker_dist.contract.job_secret import FILE
from sagemaker_dist.errors import LaunchError
from smdist.code_source import Source
from smdist.config import RuntimeConfig
from smdist.container_files import Resources
from smdist.launch.take_secret import hand_over, take_secret

ARN = "arn:aws:sagemaker:us-west-2:123456789012:training-job/job"
UPLOADED = b"a1b2" * 16
OF_JOB = hmac.new(UPLOADED, ARN.encode(), hashlib.sha256).hexdigest().encode()


@pytest.fixture
def config(tmp_path):
    (tmp_path / "input/config").mkdir(parents=True)
    return RuntimeConfig(
        base=tmp_path,
        resources=Resources(current_host="algo-1", all_hosts=("algo-1",), hosts=("algo-1",)),
        source=Source(program="train.py"),
        options=DataParallel(),
        job_arn=ARN,
        inherited={"SMDIST_SECRET": "shown", "PATH": "/bin"},
    )


@pytest.fixture(scope="module")
def s3():
    """Return a client of a mock S3 server with code, and the server's URL."""
    server = ThreadedMotoServer(port=0)
    server.start()
    host, port = server.get_host_and_port()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AWS_ACCESS_KEY_ID", "test")
        patch.setenv("AWS_SECRET_ACCESS_KEY", "test")
        client = boto3.client("s3", region_name="us-east-1", endpoint_url=f"http://{host}:{port}")
        client.create_bucket(Bucket="code")
        client.put_object(Bucket="code", Key="new/sourcedir.tar.gz.secret", Body=UPLOADED)
        yield f"http://{host}:{port}"
    server.stop()


def from_s3(config, s3, uri):
    source = Source(program="train.py", submit_directory=uri, region="us-east-1", endpoint=s3)
    return replace(config, source=source)


def test_a_local_jobs_secret_is_taken_and_its_file_is_gone(config):
    """It is used as it is: it is this job's alone."""
    file = config.base / "input/config" / FILE
    file.write_text("of this job")

    assert b"of this job" == take_secret(config).value
    assert not file.exists()


def test_the_users_secret_comes_first(config, tmp_path):
    """The log says so where the job has a secret of its own."""
    (config.base / "input/config" / FILE).write_text("of this job")
    (tmp_path / "mine").write_text("mine\n")

    found = take_secret(replace(config, secret_file=str(tmp_path / "mine")))
    assert (b"mine", True) == (found.value, bool(found.warning))
    found = take_secret(replace(config, secret="value"))
    assert (b"value", False) == (found.value, bool(found.warning))
    assert not list(config.base.rglob(FILE))


def test_two_secrets_of_the_user_are_refused(config, tmp_path):
    """And neither is shown."""
    (tmp_path / "mine").write_text("first")
    with pytest.raises(LaunchError) as caught:
        take_secret(replace(config, secret_file=str(tmp_path / "mine"), secret="second"))

    assert [("SMDIST_SECRET", "conflict")] == fields_of(caught.value)
    assert not [text for text in ("first", "second") if text in str(caught.value)]


def test_jobs_that_share_code_derive_different_secrets(config, s3):
    """The uploaded secret is not used itself; all hosts of a job derive the same."""
    job = from_s3(config, s3, "s3://code/new/sourcedir.tar.gz")

    assert OF_JOB == take_secret(job).value == take_secret(job).value
    other = replace(job, job_arn=f"{ARN}-2")
    assert 3 == len({UPLOADED, OF_JOB, take_secret(other).value})


def test_an_old_client_uploaded_none(config, s3):
    """The job starts, and one line says why it is not protected and what to do."""
    found = take_secret(from_s3(config, s3, "s3://code/old/sourcedir.tar.gz"))

    assert found.value is None
    assert "s3://code/old/sourcedir.tar.gz.secret" in found.warning
    assert 1 == len(found.warning.splitlines())


def test_an_unreachable_store_is_an_error(config, monkeypatch):
    """Hosts that could read the secret would wait in vain for one that went on without."""
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "test")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "test")
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")
    with pytest.raises(LaunchError) as caught:
        take_secret(from_s3(config, "http://127.0.0.1:9", "s3://code/new/sourcedir.tar.gz"))

    assert [("sagemaker_submit_directory", "not_downloaded")] == fields_of(caught.value)


def test_code_in_a_channel_brings_its_secret(config):
    """With network isolation, both are in the channel: the secret's name begins with the code's."""
    code = config.base / "input/data/code/sourcedir.tar.gz"
    code.parent.mkdir(parents=True)
    code.with_name(f"{code.name}.secret").write_bytes(UPLOADED)
    source = replace(config.source, submit_directory=str(code))

    assert OF_JOB == take_secret(replace(config, source=source)).value


def test_a_trainers_secret_is_in_its_drivers_for_every_host(config):
    """The hosts of ModelTrainer's local mode share this folder, so the file stays."""
    file = config.base / "input/data/sm_drivers/distributed_drivers" / FILE
    file.parent.mkdir(parents=True)
    file.write_bytes(UPLOADED)

    assert [OF_JOB] * 2 == [take_secret(config).value for _ in range(2)]


def test_ranks_get_a_private_file_and_no_variable_with_the_secret(config, tmp_path):
    (tmp_path / "private").mkdir()
    (config.base / "input/config" / FILE).write_text("of this job")
    given = hand_over(config, take_secret(config), tmp_path / "private")
    file = tmp_path / "private/secret"

    assert (str(file), None) == (given.secret_file, given.secret)
    assert b"of this job" == file.read_bytes()
    assert 0o600 == stat.S_IMODE(file.stat().st_mode)
    assert {"PATH": "/bin"} == given.inherited


def test_a_plain_process_downloads_no_secret(config):
    """No rank needs it: the S3 server, which does not exist, is not called."""
    job = from_s3(config, "http://127.0.0.1:9", "s3://code/new/sourcedir.tar.gz")

    assert take_secret(replace(job, options=None)).value is None


KEEPS_ITS_SECRET = """
import os, sys, time
from pathlib import Path
path = os.environ["SMDIST_SECRET_FILE"]
Path(os.environ["SM_MODEL_DIR"], "seen").write_text(path + " " + Path(path).read_text())
print("ready", flush=True)
time.sleep(60) if sys.argv[1:] else os.kill(os.getpid(), 9)
"""


@pytest.mark.parametrize(("stops", "status"), [(True, 143), (False, 137)])
def test_nothing_is_left_of_it_when_a_host_stops_or_a_rank_is_killed(stage, until, stops, status):
    """No file in the tree, no private directory, no line in the log; the code never has it."""
    given = {"wait": 1} if stops else {}
    base = stage.base(KEEPS_ITS_SECRET, **given)
    (base / "input/config" / FILE).write_text("of this job")
    run = stage.train(base, SMDIST_STOP_SECONDS="2")
    seen = base / "model/seen"
    until(lambda: "ready" in run.said(), 60)
    if stops:
        run.process.terminate()

    assert status == run.wait(30)
    path, secret = seen.read_text().split(" ", 1)
    assert "of this job" == secret
    assert not Path(path).parent.exists()
    seen.unlink()
    files = [each for each in base.rglob("*") if each.is_file()]
    assert not [each for each in files if b"of this job" in each.read_bytes()]
    assert "of this job" not in run.said()
