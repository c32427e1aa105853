# SPDX-License-Identifier: Apache-2.0
"""Submission by TrainingJob and by an estimator give the same request, except for
docs/ways_to_submit.md.
"""

import sagemaker_dist.estimators  # noqa: F401 - imports SageMaker's SDK without its advice

# isort: split
import json
import re
from functools import partial

import boto3
import pytest
import sagemaker
from moto import mock_aws
from sagemaker.telemetry import telemetry_logging

from sagemaker_dist import DataParallel, PyTorch, TorchDistributed, TrainingJob

pytestmark = [
    pytest.mark.timeout(60),
    pytest.mark.filterwarnings("ignore::UserWarning"),  # GPUs, not what this is about
]

QUIET = {
    "SchemaVersion": "1.0",
    "SageMaker": {"PythonSDK": {"Modules": {"TelemetryOptOut": True}}},
}
INPUTS = {"train": "s3://bucket/data", "shared": "fsx://fs-0123456789abcdef0/mount/data"}
JOB = {
    "role": "arn:aws:iam::123456789012:role/training",
    "instance_type": "ml.p4d.24xlarge",
    "instance_count": 2,
    "image_uri": "123456789012.dkr.ecr.us-west-2.amazonaws.com/sagemaker-dist:0.1.0-torch",
    "output_path": "s3://bucket/out",
    "code_location": "s3://bucket/code",
    "hyperparameters": {"lr": 0.1, "name": "it's a\nnäme", "flag": True, "list": [1, "a"]},
    "environment": {"A": "b"},
    "use_spot_instances": True,
    "max_run": 3600,
    "max_wait": 7200,
    "checkpoint_s3_uri": "s3://bucket/state",
    "checkpoint_local_path": "/opt/ml/state",
    "max_retry_attempts": 2,
    "volume_size": 100,
    "volume_kms_key": "key",
    "output_kms_key": "key",
    "subnets": ["subnet-0123456789abcdef0"],
    "security_group_ids": ["sg-0123456789abcdef0"],
    "encrypt_inter_container_traffic": True,
    "tags": {"team": "vision"},
    "metric_definitions": [{"Name": "accuracy", "Regex": "acc=([0-9.]+)"}],
}

DIGEST = re.compile(r"(?<=/source/)[0-9a-f]{32}/")


@pytest.fixture
def boto(monkeypatch):
    monkeypatch.setattr(telemetry_logging, "_send_telemetry_request", lambda *_: None)
    with mock_aws():
        session = boto3.Session("testing", "testing", region_name="us-west-2")
        place = {"LocationConstraint": "us-west-2"}
        session.client("s3").create_bucket(Bucket="bucket", CreateBucketConfiguration=place)
        yield session


@pytest.fixture
def sent(boto):
    """Return the request that an estimator sends."""

    def fit(**arguments):
        session = sagemaker.Session(boto, sagemaker_config=QUIET, default_bucket="bucket")
        session.sagemaker_config = {}
        requests = []
        session.sagemaker_client.create_training_job = partial(_record, requests)
        PyTorch(sagemaker_session=session, **arguments).fit(INPUTS, wait=False, job_name="job")
        return requests[0]

    return fit


def _record(requests, **request):
    requests.append(request)
    return {"TrainingJobArn": "arn"}


@pytest.mark.parametrize("option", [DataParallel(lanes=2), TorchDistributed()])
@pytest.mark.parametrize("isolated", [False, True])
def test_both_ask_for_the_same(boto, sent, tmp_path, option, isolated):
    """The requests are equal, apart from the digest of the code, whose archive has its time."""
    (tmp_path / "train.py").write_text("")
    code = {"entry_point": "train.py", "source_dir": str(tmp_path), "distribution": option}
    code["enable_network_isolation"] = isolated
    ours = TrainingJob(session=boto, inputs=INPUTS, job_name="job", **code, **JOB).request()
    theirs = json.dumps(sent(**code, **JOB))

    assert json.loads(DIGEST.sub("", theirs)) == json.loads(DIGEST.sub("", json.dumps(ours)))
