# SPDX-License-Identifier: Apache-2.0
"""Channels of hosts in containers: S3, FastFile, pipes, single files, file systems."""

import json
import tarfile

import boto3
import pytest
from moto.server import ThreadedMotoServer
from sagemaker.inputs import FileSystemInput, TrainingInput

from sagemaker_dist import LocalSession

pytestmark = pytest.mark.timeout(300, func_only=True)

READ = """
    import json, os
    from pathlib import Path

    data = Path("/opt/ml/input/data")
    whole = Path(os.environ["SM_CHANNEL_WHOLE"])
    fast = Path(os.environ["SM_CHANNEL_FAST"])
    try:
        (fast / "new").write_text("")
        fast_is_writable = True
    except OSError:
        fast_is_writable = False
    (Path(os.environ["SM_CHANNEL_SYSTEM"]) / os.environ["SM_CURRENT_HOST"]).write_text("seen")
    read = {
        "whole": sorted((p.name, p.read_text()) for p in whole.iterdir()),
        "fast": sorted((p.name, p.read_text()) for p in fast.iterdir()),
        "single": sorted((p.name, p.read_text()) for p in (data / "single").iterdir()),
        "pipe": [(data / f"pipe_{epoch}").read_text() for epoch in range(3)],
        "fast_is_writable": fast_is_writable,
        "modes": {
            name: channel["TrainingInputMode"]
            for name, channel in json.loads(os.environ["SM_INPUT_DATA_CONFIG"]).items()
        },
        "aws": sorted(name for name in os.environ if name.startswith("AWS_")),
    }
    host = os.environ["SM_CURRENT_HOST"]
    Path(os.environ["SM_MODEL_DIR"], host).write_text(json.dumps(read))
"""


@pytest.fixture
def s3(monkeypatch):
    """An S3 with three objects, which the environment of the driver leads to."""
    server = ThreadedMotoServer("127.0.0.1", 0)
    server.start()
    host, port = server.get_host_and_port()
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", f"http://{host}:{port}")
    session = boto3.Session("key", "secret", region_name="us-east-1")
    client = session.client("s3")
    client.create_bucket(Bucket="bucket")
    for name in "abc":
        client.put_object(Bucket="bucket", Key=f"set/{name}", Body=name)
    yield session
    client.close()
    server.stop()


def test_every_kind_of_channel(job, s3, tmp_path):
    """What S3 and this machine hold is what each host reads; only a file system is written to."""
    system = tmp_path / "mounted"
    (system / "folder").mkdir(parents=True)
    (tmp_path / "one.csv").write_text("1,2")
    session = LocalSession(boto_session=s3, file_systems={"fs-01234567": system})
    estimator = job(READ, instance_count=2, sagemaker_session=session)
    estimator.fit(
        {
            "whole": TrainingInput("s3://bucket/set", distribution="ShardedByS3Key"),
            "fast": TrainingInput("s3://bucket/set", input_mode="FastFile"),
            "pipe": TrainingInput("s3://bucket/set", input_mode="Pipe"),
            "single": (tmp_path / "one.csv").as_uri(),
            "system": FileSystemInput("fs-01234567", "EFS", "/folder", "rw"),
        }
    )
    with tarfile.open(estimator.model_data.removeprefix("file://")) as model:
        first, second = (json.load(model.extractfile(name)) for name in sorted(model.getnames()))

    everything = [["a", "a"], ["b", "b"], ["c", "c"]]
    assert [["a", "a"], ["c", "c"]] == first["whole"]
    assert [["b", "b"]] == second["whole"]
    assert everything == first["fast"] == second["fast"]
    assert ["abc"] * 3 == first["pipe"] == second["pipe"]
    assert [["one.csv", "1,2"]] == first["single"]
    assert not first["fast_is_writable"]
    assert {"algo-1", "algo-2"} == {path.name for path in (system / "folder").iterdir()}
    assert {"fast": "FastFile", "pipe": "Pipe", "single": "File"} == {
        name: first["modes"][name] for name in ("fast", "pipe", "single")
    }
    assert ["AWS_REGION"] == first["aws"]
