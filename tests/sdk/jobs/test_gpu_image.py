# SPDX-License-Identifier: Apache-2.0
"""A job whose image has no code for the GPUs of its instance type."""

import boto3
import pytest
from error_fields import fields_raised
from moto import mock_aws

from sagemaker_dist import DataParallel, TrainingJob
from sagemaker_dist.packaging import gpu_faults
from sagemaker_dist.packaging.image_labels import ImageLabels
from sagemaker_dist.runners import RecordingRunner


@pytest.fixture
def submitted(tmp_path, monkeypatch):
    """Return a function that makes a job for V100, whose image has the given code for GPUs."""
    (tmp_path / "train.py").touch()

    def make(code, runner):
        named = {"sagemaker-dist.framework": "torch", "sagemaker-dist.gpu-code": code}
        found = None if code is None else ImageLabels(labels=named)
        monkeypatch.setattr(gpu_faults, "ecr_labels", lambda *_: found)
        session = boto3.Session("testing", "testing", region_name="us-west-2")
        place = {"LocationConstraint": "us-west-2"}
        session.client("s3").create_bucket(Bucket="bucket", CreateBucketConfiguration=place)
        return TrainingJob(
            entry_point=str(tmp_path / "train.py"),
            role="arn:aws:iam::123456789012:role/training",
            instance_type="ml.p3.16xlarge",
            image_uri="123456789012.dkr.ecr.us-west-2.amazonaws.com/mine:1",
            output_path="s3://bucket/out",
            session=session,
            distribution=DataParallel(),
            job_name="job",
            runner=runner,
        )

    with mock_aws():
        yield make


@pytest.mark.parametrize(("code", "kind"), [("sm_80", "no_gpu_code"), ("", "cpu_build")])
def test_it_is_refused_before_the_code_is_uploaded(submitted, code, kind):
    runner = RecordingRunner()
    job = submitted(code, runner)

    assert [("instance_type", kind)] == fields_raised(job.submit)
    assert [] == runner.requests
    assert "Contents" not in job.session.client("s3").list_objects_v2(Bucket="bucket")


@pytest.mark.parametrize("code", ["sm_70", None])
def test_it_starts_if_there_is_code_or_nothing_is_known(submitted, code):
    assert "job" == submitted(code, RecordingRunner()).submit()
