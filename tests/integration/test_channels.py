# SPDX-License-Identifier: Apache-2.0
"""Data from S3 through estimator and launcher, as a directory and as pipes."""

import tarfile
from textwrap import dedent

import boto3
import pytest
from moto.server import ThreadedMotoServer
from sagemaker.inputs import TrainingInput

from sagemaker_dist import JobError, PyTorch

pytestmark = pytest.mark.timeout(120)

SCRIPT = """
    import os
    from pathlib import Path

    directory, pipe = os.environ["SM_CHANNEL_TRAINING"], os.environ["SM_CHANNEL_TRAIN"]
    read = [path.read_bytes() for path in sorted(Path(directory).iterdir())]
    for epoch in range(3):
        read.append(Path(f"{pipe}_{epoch}").read_bytes())
    host = os.environ["SM_CURRENT_HOST"]
    Path(os.environ["SM_MODEL_DIR"], host).write_bytes(b" ".join(read))
"""


@pytest.fixture
def s3(tmp_path, monkeypatch):
    """Start a mock S3 server with three objects; the environment variables name it."""
    server = ThreadedMotoServer("127.0.0.1", 0)
    server.start()
    host, port = server.get_host_and_port()
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", f"http://{host}:{port}")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "key")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    client = boto3.client("s3", region_name="us-east-1")
    client.create_bucket(Bucket="bucket")
    for name in "abc":
        client.put_object(Bucket="bucket", Key=f"set/{name}", Body=name)
    yield client
    client.close()
    server.stop()


@pytest.fixture
def estimator(tmp_path):
    (tmp_path / "train.py").write_text(dedent(SCRIPT))
    return PyTorch(
        entry_point="train.py",
        source_dir=str(tmp_path),
        instance_type="local_process",
        instance_count=2,
        output_path=(tmp_path / "output").as_uri(),
    )


def test_directories_and_pipes_from_s3(s3, estimator):
    """Each host has the whole directory; its pipes have its part in each epoch."""
    sharded = {"distribution": "ShardedByS3Key", "input_mode": "Pipe"}
    estimator.fit(
        {"training": "s3://bucket/set", "train": TrainingInput("s3://bucket/set", **sharded)}
    )
    with tarfile.open(estimator.model_data.removeprefix("file://")) as model:
        read = [model.extractfile(name).read() for name in sorted(model.getnames())]

    assert [b"a b c ac ac ac", b"a b c b b b"] == read


def test_what_s3_refuses_is_what_fit_raises(s3, estimator):
    with pytest.raises(JobError) as caught:
        estimator.fit("s3://nowhere/set")

    assert (
        "channel 'training' (s3://nowhere/set) cannot be downloaded: there is no such bucket."
        " Correct the bucket"
    ) == caught.value.why
