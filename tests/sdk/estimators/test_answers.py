# SPDX-License-Identifier: Apache-2.0
"""Our classes handle SageMaker's answers as their parents do: jobs that stop, change or fail.

moto cannot play these, so botocore's Stubber answers.
"""

from functools import partial
from itertools import count

import pytest
import sagemaker
from botocore.stub import ANY, Stubber
from sagemaker.exceptions import CapacityError, UnexpectedStatusException
from sagemaker.huggingface import HuggingFace as TheirHuggingFace
from sagemaker.pytorch import PyTorch as TheirPyTorch
from sagemaker.tensorflow import TensorFlow as TheirTensorFlow

from sagemaker_dist import DataParallel, Estimator, HuggingFace, PyTorch, TensorFlow

pytestmark = [
    pytest.mark.timeout(60),
    # the SDK's advice to move to version 3, where a test builds the SDK's own classes
    pytest.mark.filterwarnings("ignore::sagemaker.deprecations.SageMakerV2DeprecationWarning"),
]

OURS = {
    "our Estimator": Estimator,
    "our HuggingFace": HuggingFace,
    "our PyTorch": PyTorch,
    "our TensorFlow": TensorFlow,
}
CLASSES = {
    **OURS,
    "Estimator": sagemaker.estimator.Estimator,
    "HuggingFace": TheirHuggingFace,
    "PyTorch": TheirPyTorch,
    "TensorFlow": TheirTensorFlow,
}
LAUNCHED = (Estimator, HuggingFace, PyTorch)
NAMES = (f"answer-{number}" for number in count())
REASON = "AlgorithmError: rank 3 on algo-2: ValueError: loss is nan, exit code: 1"


@pytest.fixture(params=CLASSES)
def build(request, session, script):
    """Return a function that builds an estimator of one of our classes, or of its parent."""
    kind = CLASSES[request.param]
    arguments = {
        "entry_point": "train.py",
        "source_dir": script(),
        "role": "arn:aws:iam::123456789012:role/training",
        "image_uri": "123456789012.dkr.ecr.us-west-2.amazonaws.com/mine:1",
        "instance_type": "ml.c5.9xlarge",
        "instance_count": 2,
        "sagemaker_session": session,
    }
    if "HuggingFace" in request.param:
        arguments["py_version"] = None
    if kind in LAUNCHED:
        arguments["distribution"] = DataParallel()
    return partial(kind, **arguments)


@pytest.fixture
def stubber(session, monkeypatch):
    """Return a stub that answers SageMaker's calls, one by one, after the job was created."""
    stubber, create = (
        Stubber(session.sagemaker_client),
        session.sagemaker_client.create_training_job,
    )

    def then_answer(**request):
        made = create(**request)
        stubber.activate()
        return made

    monkeypatch.setattr(session.sagemaker_client, "create_training_job", then_answer)
    wait = sagemaker.session._wait_until
    monkeypatch.setattr(sagemaker.session, "_wait_until", partial(wait, poll=0.01))
    yield stubber
    stubber.deactivate()


def start(built):
    name = next(NAMES)
    built.fit("s3://bucket/data", wait=False, job_name=name)
    return name


def test_a_job_is_stopped_by_its_name(build, stubber):
    built = build()
    name = start(built)
    stubber.add_response("stop_training_job", {}, {"TrainingJobName": name})
    built.latest_training_job.stop()

    stubber.assert_no_pending_responses()


def test_a_warm_pool_is_kept_longer(build, stubber):
    built = build(keep_alive_period_in_seconds=600)
    longer = {"KeepAlivePeriodInSeconds": 1200}
    expected = {"TrainingJobName": start(built), "ResourceConfig": longer}
    stubber.add_response("update_training_job", {"TrainingJobArn": "a" * 60}, expected)
    built.latest_training_job.update(built, resource_config=longer)

    stubber.assert_no_pending_responses()


def test_remote_debugging_is_turned_on(build, stubber):
    built = build()
    switch = {"EnableRemoteDebug": True}
    expected = {"TrainingJobName": start(built), "RemoteDebugConfig": switch}
    stubber.add_response("update_training_job", {"TrainingJobArn": "a" * 60}, expected)
    built.enable_remote_debug()

    stubber.assert_no_pending_responses()


@pytest.mark.parametrize("logs", [False, True])
@pytest.mark.parametrize(
    ("reason", "kind"),
    [
        (REASON, UnexpectedStatusException),
        ("CapacityError: Unable to provision requested ML compute capacity.", CapacityError),
    ],
)
def test_a_job_that_fails_says_why(build, stubber, logs, reason, kind):
    """fit raises an error with SageMaker's FailureReason, which has the failed rank's message."""
    built, name = build(), next(NAMES)
    for _ in range(2 if logs else 1):
        stubber.add_response("describe_training_job", ended(name, "Failed", reason), {**ASKS})
    with pytest.raises(kind) as caught:
        built.fit("s3://bucket/data", logs=logs, job_name=name)

    assert f"Error for Training job {name}: Failed. Reason: {reason}. Check" in str(caught.value)
    assert name == built.latest_training_job.name


def test_a_job_that_is_stopped_elsewhere_is_no_error(build, stubber, caplog):
    """The SDK prints that the job was stopped, and fit returns."""
    built, name = build(), next(NAMES)
    stubber.add_response("describe_training_job", ended(name, "Stopped"), {**ASKS})
    built.fit("s3://bucket/data", logs=False, job_name=name)

    assert "Job ended with status 'Stopped'" in caplog.text


ASKS = {"TrainingJobName": ANY}


def ended(name, status, reason=None):
    """Return SageMaker's description of a job that has ended."""
    return {
        "TrainingJobName": name,
        "TrainingJobArn": f"arn:aws:sagemaker:us-west-2:123456789012:training-job/{name}",
        "ModelArtifacts": {"S3ModelArtifacts": "s3://bucket/model.tar.gz"},
        "TrainingJobStatus": status,
        "SecondaryStatus": status,
        "AlgorithmSpecification": {"TrainingInputMode": "File"},
        "ResourceConfig": {"InstanceCount": 2, "VolumeSizeInGB": 30},
        "StoppingCondition": {"MaxRuntimeInSeconds": 60},
        "CreationTime": 0,
        **({} if reason is None else {"FailureReason": reason}),
    }
