# SPDX-License-Identifier: Apache-2.0
"""Default images of jobs without image_uri."""

import json

import boto3
import pytest
import sagemaker
from moto import mock_aws

from sagemaker_dist import (
    DataParallel,
    HuggingFace,
    LocalSession,
    OptionError,
    PyTorch,
    SetupError,
    SkewError,
)
from sagemaker_dist.packaging import default_tag, gpu_faults
from sagemaker_dist.packaging.image_labels import ImageLabels
from sagemaker_dist.runners import RecordingRunner

pytestmark = [
    pytest.mark.timeout(60),
    # the SDK's advice to move to version 3, where a test builds the SDK's own classes
    pytest.mark.filterwarnings("ignore::sagemaker.deprecations.SageMakerV2DeprecationWarning"),
]

ROLE = "arn:aws:iam::123456789012:role/training"
TAG = default_tag("torch").partition(":")[2]
MANIFEST = {"schemaVersion": 2, "mediaType": "application/vnd.docker.distribution.manifest.v2+json"}


@pytest.fixture
def session():
    """Return a SageMaker session of moto."""
    with mock_aws():
        boto = boto3.Session("testing", "testing", region_name="us-west-2")
        boto.client("s3").create_bucket(
            Bucket="bucket", CreateBucketConfiguration={"LocationConstraint": "us-west-2"}
        )
        made = sagemaker.Session(boto, default_bucket="bucket")
        made.sagemaker_config = {}
        yield made


@pytest.fixture
def push(session):
    """Return a function that puts images of these tags into the account's repository."""

    def make(*tags):
        ecr = session.boto_session.client("ecr")
        ecr.create_repository(repositoryName="sagemaker-dist")
        for tag in tags:
            manifest = json.dumps({**MANIFEST, "layers": [], "tag": tag})
            ecr.put_image(repositoryName="sagemaker-dist", imageManifest=manifest, imageTag=tag)

    return make


@pytest.fixture
def estimator(session, script):
    def build(kind=PyTorch, **changes):
        arguments = {
            "entry_point": "train.py",
            "source_dir": script(),
            "role": ROLE,
            "instance_type": "ml.c5.xlarge",
            "instance_count": 1,
            "sagemaker_session": session,
            "distribution": DataParallel(),
        }
        return kind(**{**arguments, **changes})

    return build


@pytest.mark.parametrize("kind", [HuggingFace, PyTorch])
def test_a_pushed_image_is_found(estimator, session, push, kind):
    """The job uses this version's image in the session's account and region."""
    push(TAG, "9.9.9-torch")
    estimator(kind).fit(wait=False, job_name="found")
    description = session.describe_training_job("found")

    assert (
        f"123456789012.dkr.ecr.us-west-2.amazonaws.com/sagemaker-dist:{TAG}"
        == description["AlgorithmSpecification"]["TrainingImage"]
    )


def test_no_image_was_pushed(estimator, session):
    """fit() raises an error with the commands to build and push, before anything is sent."""
    with pytest.raises(SetupError) as caught:
        estimator().fit(wait=False, job_name="lost")

    assert "not_found" == caught.value.kind
    assert "sagemaker-dist image push" in caught.value.hint
    assert [] == session.sagemaker_client.list_training_jobs()["TrainingJobSummaries"]


def test_only_another_version_was_pushed(estimator, push):
    """The error names both versions."""
    push("9.9.9-torch")
    with pytest.raises(SkewError) as caught:
        estimator().fit(wait=False)

    assert "skew" == caught.value.kind
    assert all(each in str(caught.value) for each in ("9.9.9", TAG.partition("-")[0]))


def test_without_our_distribution_the_image_is_awss(estimator):
    """framework_version selects an AWS Deep Learning Container."""
    built = estimator(distribution=None, framework_version="2.5", py_version="py311")

    assert "/pytorch-training:2.5-cpu-py311" in built.training_image_uri()


@pytest.mark.parametrize("instance_type", ["local", "local_gpu"])
def test_containers_of_this_machine_are_of_the_image_built_here(script, instance_type):
    """Local containers use the image that was built here, for any number of hosts."""
    runner = RecordingRunner()
    built = PyTorch(
        "train.py",
        source_dir=script(),
        instance_type=instance_type,
        instance_count=3,
        distribution=DataParallel(processes_per_host=2),
        sagemaker_session=LocalSession(runner=runner),
    )
    built.fit(wait=False)

    assert default_tag("torch") == runner.requests[0]["AlgorithmSpecification"]["TrainingImage"]
    assert {"InstanceType": instance_type, "InstanceCount": 3}.items() <= runner.requests[0][
        "ResourceConfig"
    ].items()


def test_a_named_image_is_taken(script):
    runner = RecordingRunner()
    session = LocalSession(runner=runner)
    options = {"instance_type": "local", "instance_count": 1, "sagemaker_session": session}
    PyTorch("train.py", source_dir=script(), image_uri="mine:1", **options).fit(wait=False)

    assert "mine:1" == runner.requests[0]["AlgorithmSpecification"]["TrainingImage"]


@pytest.mark.filterwarnings("ignore:ml.p4d.24xlarge has:UserWarning")  # how gradients travel
def test_a_job_is_refused_if_its_image_has_no_code_for_the_gpus(
    estimator, session, push, monkeypatch
):
    """The fault is raised before the code is uploaded, and names the image that was found."""
    push(TAG)
    cpu = ImageLabels(labels={"sagemaker-dist.framework": "torch", "sagemaker-dist.gpu-code": ""})
    images = []
    monkeypatch.setattr(gpu_faults, "ecr_labels", lambda _, image: images.append(image) or cpu)
    built = estimator(instance_type="ml.p4d.24xlarge")
    with pytest.raises(OptionError) as caught:
        built.fit(wait=False, job_name="refused")

    assert (("instance_type",), "cpu_build") == (caught.value.about, caught.value.kind)
    assert [f"123456789012.dkr.ecr.us-west-2.amazonaws.com/sagemaker-dist:{TAG}"] == images
    objects = session.boto_session.client("s3").list_objects_v2(Bucket="bucket")
    assert "Contents" not in objects
