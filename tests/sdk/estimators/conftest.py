# SPDX-License-Identifier: Apache-2.0
"""Fixtures for estimators; our package imports the SDK first, which suppresses its advice to use
version 3.
"""

import sagemaker_dist.estimators  # noqa: F401 - for what the import does

# isort: split
from functools import partial

import boto3
import pytest
import sagemaker
from moto import mock_aws
from sagemaker.telemetry import telemetry_logging
from sagemaker.workflow.pipeline_context import PipelineSession

from sagemaker_dist import DataParallel, PyTorch

QUIET = {
    "SchemaVersion": "1.0",
    "SageMaker": {"PythonSDK": {"Modules": {"TelemetryOptOut": True}}},
}


@pytest.fixture
def estimator(script, tmp_path):
    """Return a function that builds an estimator of two hosts, with the test's changes."""

    def build(**changes):
        arguments = {
            "entry_point": "train.py",
            "source_dir": str(tmp_path / "src"),
            "instance_type": "local_process",
            "instance_count": 2,
            "distribution": DataParallel(processes_per_host=2),
        }
        return PyTorch(**{**arguments, **changes})

    return build


@pytest.fixture(scope="module")
def amazon():
    """Return a SageMaker session of moto with a bucket; `requests` has all requests that were
    sent.
    """
    with mock_aws(), pytest.MonkeyPatch.context() as patch:
        # the SDK checks a configuration against its schema at every look: tests do without one
        patch.setattr(telemetry_logging, "_send_telemetry_request", lambda *_: None)
        boto = boto3.Session("testing", "testing", region_name="us-west-2")
        boto.client("s3").create_bucket(
            Bucket="bucket", CreateBucketConfiguration={"LocationConstraint": "us-west-2"}
        )
        session = sagemaker.Session(boto, sagemaker_config=QUIET, default_bucket="bucket")
        session.sagemaker_config = {}
        session.wait_for_job = partial(session.wait_for_job, poll=0.1)
        create = session.sagemaker_client.create_training_job

        def record(**request):
            session.requests.append(request)
            return create(**request)

        session.sagemaker_client.create_training_job = record
        yield session


@pytest.fixture
def session(amazon):
    amazon.requests = []
    return amazon


@pytest.fixture
def pipeline(session):
    """Return a session that creates steps of a pipeline instead of jobs."""
    made = PipelineSession(
        session.boto_session, sagemaker_client=session.sagemaker_client, default_bucket="bucket"
    )
    made.sagemaker_config = {}
    return made
