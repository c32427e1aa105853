# SPDX-License-Identifier: Apache-2.0
"""Containers, their image, their logs and what the engine remembers have no credentials."""

import json
import tarfile
import tempfile
from time import time

import boto3
import pytest
from credentials import ENVIRONMENT, LOOK, SESSION, hits, hits_below, look
from jobs import wait_until
from moto.server import ThreadedMotoServer

from sagemaker_dist import DataParallel, LocalSession, PyTorch
from sagemaker_dist.packaging import ImageOptions, build_image
from sagemaker_dist.runners.local.containers.container_arguments import FOLDER_LABEL

pytestmark = pytest.mark.timeout(400, func_only=True)

PLACES = ("/opt/ml", "/tmp", "/etc", "/home", "/root", "/run", "/var")  # of a container
WAIT = """
import time

checkpoints = Path(os.environ["SM_CHECKPOINT_DIR"])
(checkpoints / f"{host}-looked").touch()
while not (checkpoints / "go").exists():
    time.sleep(0.05)
"""


@pytest.fixture
def session(tmp_path, monkeypatch):
    """A session with credentials of its own, in an environment with others; an S3 takes both."""
    for name in ("home", "tmp", "source"):
        (tmp_path / name).mkdir()
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("TMPDIR", str(tmp_path / "tmp"))
    monkeypatch.setattr(tempfile, "tempdir", None)  # where it is remembered
    for name, value in ENVIRONMENT.items():
        monkeypatch.setenv(name, value)
    server = ThreadedMotoServer("127.0.0.1", 0)
    server.start()
    host, port = server.get_host_and_port()
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", f"http://{host}:{port}")
    key, secret, token = SESSION.values()
    boto_session = boto3.Session(key, secret, token, region_name="us-east-1")
    client = boto_session.client("s3")
    client.create_bucket(Bucket="bucket")
    client.put_object(Bucket="bucket", Key="set/a", Body="data")
    yield LocalSession(boto_session=boto_session)
    client.close()
    server.stop()


@pytest.fixture
def estimator(image, session, tmp_path):
    """Of two hosts whose script looks for the secrets, and then waits for a file."""
    (tmp_path / "source/train.py").write_text(LOOK + WAIT)
    (tmp_path / "checkpoints").mkdir()
    return PyTorch(
        entry_point="train.py",
        source_dir=str(tmp_path / "source"),
        instance_type="local",
        instance_count=2,
        image_uri=image.name,
        distribution=DataParallel(processes_per_host=1),
        output_path=(tmp_path / "output").as_uri(),
        checkpoint_s3_uri=(tmp_path / "checkpoints").as_uri(),
        sagemaker_session=session,
        hyperparameters=look(PLACES),
    )


def test_no_credential_is_in_a_container_or_with_the_engine(engine, estimator, tmp_path, capfd):
    """While the job runs: the container from inside, its configuration, its log, every file."""
    began = int(time())
    estimator.fit("s3://bucket/set", wait=False)
    try:
        looked = tmp_path / "checkpoints"
        wait_until(lambda: len(list(looked.glob("*-looked"))) == 2, seconds=120)
        containers = engine.containers.list(filters={"label": FOLDER_LABEL})
        inspected = [container.attrs for container in containers]
        logged = [container.logs().decode() for container in containers]
        networks = [network.attrs for network in engine.networks.list()]
        files = hits_below(tmp_path)
    finally:
        (tmp_path / "checkpoints/go").touch()
        estimator.latest_training_job.wait()
    events = list(engine.events(since=began, until=int(time()) + 1, decode=True))
    said = capfd.readouterr()
    with tarfile.open(estimator.model_data.removeprefix("file://")) as archive:
        reports = [json.load(archive.extractfile(member)) for member in archive if member.isfile()]

    assert 2 == len(inspected)
    assert "starts rank 0 of 2" in "".join(logged)
    assert [] == files
    assert [] == hits(inspected, logged, networks)
    assert any(event["Type"] == "container" for event in events)
    assert [] == hits(events, said.out, said.err)
    assert [("data", [], [])] * 2 == [(r["data"], r["found"], r["environment"]) for r in reports]
    assert [] == hits_below(tmp_path)


def test_no_credential_is_in_the_image(engine, offline, session, tmp_path, capfd):
    """Built where the environment has some: its configuration and the commands of its layers."""
    built = build_image(ImageOptions(**offline, tag="smdist-test-credentials:1"))
    image = engine.images.get(built.name)
    history = image.history()
    engine.images.remove(built.name, noprune=True)
    said = capfd.readouterr()

    assert history
    assert [] == hits(image.attrs, history, said.out, said.err)
    assert [] == hits_below(tmp_path)
