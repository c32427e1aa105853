# SPDX-License-Identifier: Apache-2.0
"""Fixtures: a mock S3 server, and jobs whose hosts record their environment."""

import json

import boto3
import pytest
from local_jobs import log, run
from moto.server import ThreadedMotoServer


@pytest.fixture(scope="session")
def server():
    server = ThreadedMotoServer("127.0.0.1", 0)
    server.start()
    host, port = server.get_host_and_port()
    yield f"http://{host}:{port}"
    server.stop()


@pytest.fixture
def s3(server, monkeypatch):
    """Return a client of an empty mock S3 server, which the environment variables name."""
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", server)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "key")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    client = boto3.client("s3", region_name="us-east-1")
    for bucket in client.list_buckets()["Buckets"]:
        for each in client.list_objects_v2(Bucket=bucket["Name"]).get("Contents", []):
            client.delete_object(Bucket=bucket["Name"], Key=each["Key"])
        client.delete_bucket(Bucket=bucket["Name"])
    client.create_bucket(Bucket="bucket")
    yield client
    client.close()


@pytest.fixture
def put(s3):
    def put(**objects):
        for key, text in objects.items():
            s3.put_object(Bucket="bucket", Key=key, Body=text)

    return put


@pytest.fixture
def seen(runner, request_for, script):
    """Return a function that runs a script on hosts with channels, and returns each host's
    record.
    """

    def seen(text, *channels, hosts=1, **more):
        script(text)
        output = {"S3OutputPath": "", "CompressionType": "NONE"}
        described = run(
            runner,
            request_for(
                hosts=hosts, InputDataConfig=list(channels), OutputDataConfig=output, **more
            ),
        )
        assert "Completed" == described["TrainingJobStatus"], log(runner)
        model = runner.root / "job" / "output" / "model"
        return [json.loads((model / f"algo-{i + 1}.json").read_text()) for i in range(hosts)]

    return seen
