# SPDX-License-Identifier: Apache-2.0
"""A job that reads S3 with credentials writes them to no file and shows them in no log."""

import json
import os
import pickle
import tarfile
import tempfile
import traceback

import boto3
import pytest
from credentials import ENVIRONMENT, LOOK, SESSION, hits, hits_below, look
from jobs import processes_of, wait_until
from moto.server import ThreadedMotoServer

from sagemaker_dist import DataParallel, JobError, LocalSession, PyTorch

pytestmark = pytest.mark.timeout(120)


@pytest.fixture(autouse=True)
def _home(tmp_path, monkeypatch):
    """Keep all files of a test, temporary ones included, below tmp_path."""
    for name in ("home", "tmp", "source"):
        (tmp_path / name).mkdir()
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("TMPDIR", str(tmp_path / "tmp"))
    monkeypatch.setattr(tempfile, "tempdir", None)  # where it is remembered
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    for name, value in ENVIRONMENT.items():
        monkeypatch.setenv(name, value)


@pytest.fixture
def s3(monkeypatch):
    """Start a mock S3 server with one object, which accepts any credentials."""
    server = ThreadedMotoServer("127.0.0.1", 0)
    server.start()
    host, port = server.get_host_and_port()
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", f"http://{host}:{port}")
    client = boto3.client("s3", region_name="us-east-1")
    client.create_bucket(Bucket="bucket")
    client.put_object(Bucket="bucket", Key="set/a", Body="data")
    yield
    client.close()
    server.stop()


@pytest.fixture
def session():
    """Return a session with credentials of its own."""
    key, secret, token = SESSION.values()
    return LocalSession(boto_session=boto3.Session(key, secret, token, region_name="us-east-1"))


@pytest.fixture
def planted(tmp_path_factory):
    """Write a secret to a file outside the job, to show that the search finds it."""
    file = tmp_path_factory.mktemp("planted") / "file"
    file.write_text(SESSION["AWS_SESSION_TOKEN"])
    return file


@pytest.fixture
def build(s3, tmp_path, planted):
    """Return a function that builds an estimator whose script searches for the secrets."""

    def make(script=LOOK, **options):
        (tmp_path / "source/train.py").write_text(script)
        return PyTorch(
            entry_point="train.py",
            source_dir=str(tmp_path / "source"),
            instance_type="local_process",
            output_path=(tmp_path / "output").as_uri(),
            hyperparameters=look([tmp_path, planted.parent]),
            **{"instance_count": 2, **options},
        )

    return make


def reports(estimator):
    """Return what the scripts found, by host."""
    with tarfile.open(estimator.model_data.removeprefix("file://")) as archive:
        return [json.load(archive.extractfile(member)) for member in archive if member.isfile()]


@pytest.mark.parametrize(
    "distribution",
    [pytest.param(None, marks=pytest.mark.slow), DataParallel(processes_per_host=1)],
)
def test_credentials_of_a_session_reach_the_download_alone(
    build, session, tmp_path, capfd, planted, distribution
):
    """No file, log, repr or host's environment has the credentials, during the job or after it."""
    estimator = build(sagemaker_session=session, distribution=distribution)
    estimator.fit("s3://bucket/set")
    said = capfd.readouterr()
    estimator.logs()
    logged = capfd.readouterr()
    first, second = reports(estimator)
    runner = session.runner
    shown = [repr(each) for each in (estimator, session, runner, estimator.latest_training_job)]
    described = estimator.latest_training_job.describe()

    assert "data" == first["data"] == second["data"]
    assert [f"{planted}: {planted.read_text()}"[::-1]] == first["found"] == second["found"]
    assert not [name for name, value in SESSION.items() if value in os.environ.values()]
    assert [] == hits_below(tmp_path)
    assert [] == hits(said.out, said.err, logged.out, logged.err, *shown, described)


def test_processes_of_this_machine_inherit_the_environment_and_nothing_more(build, session):
    """Hosts inherit the user's environment, so that a script may read S3; the session's credentials
    are not in it.
    """
    estimator = build(sagemaker_session=session)
    estimator.fit("s3://bucket/set")

    assert [[*ENVIRONMENT]] * 2 == [sorted(each["environment"]) for each in reports(estimator)]


def test_no_process_of_a_host_has_the_credentials_of_a_session(build, session, tmp_path):
    """No launcher, torchrun, guard or rank has them in its environment or command line."""
    script = f"import time\nwhile not __import__('os').path.exists({str(tmp_path / 'go')!r}):\n"
    options = {"distribution": DataParallel(processes_per_host=1), "sagemaker_session": session}
    estimator = build(script + "    time.sleep(0.05)\n", **options)
    estimator.fit("s3://bucket/set", wait=False)
    name = estimator.latest_training_job.name
    processes = wait_until(lambda: len(found := processes_of(name)) >= 8 and found)
    seen = [(process.cmdline(), process.environ()) for process in processes]
    found = hits_below(tmp_path)
    (tmp_path / "go").touch()
    estimator.latest_training_job.wait()

    assert [] == found
    assert not {*hits(*seen)} & {*SESSION.values()}
    assert [] == hits(*(command for command, _ in seen))


def test_a_script_that_fails_takes_no_credentials_along(build, session, tmp_path, capfd):
    """The error, its traceback, its pickle, FailureReason and the kept files have no
    credentials.
    """
    estimator = build("raise ValueError('boom')", sagemaker_session=session)
    with pytest.raises(JobError) as caught:
        estimator.fit("s3://bucket/set")
    said = capfd.readouterr()
    whole = "".join(traceback.format_exception(caught.value))
    kept = [str(caught.value), repr(caught.value), whole, pickle.dumps(caught.value)]

    assert "boom" in str(caught.value)
    assert [] == hits(said.out, said.err, *kept)
    assert [] == hits_below(tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("own", [True, False])
def test_a_download_that_fails_takes_no_credentials_along(build, session, tmp_path, capfd, own):
    """A failed download shows neither a session's credentials nor the environment's."""
    estimator = build(**({"sagemaker_session": session} if own else {}))
    with pytest.raises(JobError, match="no such bucket") as caught:
        estimator.fit("s3://nowhere/set")
    said = capfd.readouterr()
    whole = "".join(traceback.format_exception(caught.value))

    assert [] == hits(said.out, said.err, str(caught.value), repr(caught.value), whole)
    assert [] == hits_below(tmp_path)


@pytest.mark.parametrize(
    ("variable", "scheme"),
    [
        ("AWS_ENDPOINT_URL_S3", "https"),
        pytest.param("HTTPS_PROXY", "http", marks=pytest.mark.slow),
    ],
)
def test_the_password_of_an_endpoint_or_proxy_is_not_shown(
    build, tmp_path, monkeypatch, capfd, variable, scheme
):
    """The error hides the password in the URL of an endpoint or proxy that cannot be reached."""
    password = SESSION["AWS_ACCESS_KEY_ID"]
    monkeypatch.delenv("AWS_ENDPOINT_URL_S3")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")
    monkeypatch.setenv(variable, f"{scheme}://user:{password}@127.0.0.1:9")
    with pytest.raises(JobError, match=r"://.*127\.0\.0\.1:9") as caught:
        build().fit("s3://bucket/set")
    said = capfd.readouterr()

    assert [] == hits(said.out, said.err, str(caught.value), repr(caught.value))
    assert [] == hits_below(tmp_path)


def test_a_supervisor_that_breaks_takes_no_credentials_along(
    build, session, tmp_path, monkeypatch, capfd
):
    """The traceback in the supervisor's log has no credentials."""
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken/sitecustomize.py").write_text(
        "import sys\nif 'supervisor' in ' '.join(sys.orig_argv):\n    raise SystemExit('broken')\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "broken"))
    with pytest.raises(JobError, match="did not start") as caught:
        build(sagemaker_session=session).fit("s3://bucket/set")
    said = capfd.readouterr()
    whole = "".join(traceback.format_exception(caught.value))

    assert [] == hits(said.out, said.err, str(caught.value), whole)
    assert [] == hits_below(tmp_path)


def test_what_is_searched_for_would_be_found(tmp_path):
    """The search finds a secret in a file, in a name, and in a file of an archive."""
    secret = ENVIRONMENT["AWS_SECRET_ACCESS_KEY"]
    (tmp_path / "plain").write_text(f"key = {secret}")
    with tarfile.open(tmp_path / "output.tar.gz", "w:gz") as archive:
        archive.add(tmp_path / "plain", "plain")
    (tmp_path / SESSION["AWS_ACCESS_KEY_ID"]).touch()

    assert 3 == len(hits_below(tmp_path))
    assert [secret] == hits({"environment": {"A": secret}})
