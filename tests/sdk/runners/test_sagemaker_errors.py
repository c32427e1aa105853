# SPDX-License-Identifier: Apache-2.0
"""Conversion of AWS's errors to ours, with AWS's message and a hint."""

import pickle

import boto3
import pytest
from botocore.exceptions import (
    EndpointConnectionError,
    NoCredentialsError,
    PartialCredentialsError,
    SSLError,
    UnauthorizedSSOTokenError,
)
from botocore.stub import Stubber

from sagemaker_dist.errors import DistError, JobError, OptionError, SetupError
from sagemaker_dist.runners import SageMakerRunner
from sagemaker_dist.runners.sagemaker.api_errors import DeniedError, PassingError, translated

USER = "User: arn:aws:sts::123456789012:assumed-role/notebook/me is not authorized to perform: "
ROLE = "arn:aws:iam::123456789012:role/training"
PASS_ROLE = f"iam:PassRole on resource: {ROLE} because no policy allows it"
REQUEST = {
    "TrainingJobName": "job",
    "RoleArn": ROLE,
    "AlgorithmSpecification": {"TrainingInputMode": "File"},
    "OutputDataConfig": {"S3OutputPath": "s3://bucket"},
    "ResourceConfig": {"InstanceType": "ml.c5.xlarge", "InstanceCount": 1},
}


@pytest.fixture
def aws():
    return SageMakerRunner(boto3.Session("testing", "testing", region_name="eu-west-1"))


def refused(aws, code, said):
    """Return the error of a start that SageMaker refuses."""
    with Stubber(aws._api._sagemaker) as stub:
        stub.add_client_error("create_training_job", code, said)
        with pytest.raises(DistError) as raised:
            aws.start(REQUEST)
    return raised.value


@pytest.mark.parametrize(
    ("code", "said", "cls", "about", "kind"),
    [
        (
            "ExpiredTokenException",
            "The security token included in the request is expired",
            SetupError,
            (),
            "bad_credentials",
        ),
        ("ExpiredToken", "The provided token has expired.", SetupError, (), "bad_credentials"),
        (
            "UnrecognizedClientException",
            "The security token included in the request is invalid.",
            SetupError,
            (),
            "bad_credentials",
        ),
        (
            "InvalidSignatureException",
            "Signature expired: 20261121T000000Z is now earlier than 20261121T010000Z",
            SetupError,
            (),
            "wrong_clock",
        ),
        (
            "InvalidSignatureException",
            "The request signature we calculated does not match the signature you provided.",
            SetupError,
            (),
            "bad_credentials",
        ),
        ("AccessDeniedException", f"{USER}{PASS_ROLE}", DeniedError, (), "access_denied"),
        (
            "ResourceLimitExceeded",
            "The account-level service limit 'ml.p4d.24xlarge for training job usage' is 0"
            " Instances, with current utilization of 0 Instances.",
            JobError,
            (),
            "quota",
        ),
        (
            "ValidationException",
            "Could not assume role. Please ensure that the role exists.",
            OptionError,
            (),
            "refused",
        ),
        ("ResourceNotFound", "Training plan not found.", OptionError, (), "refused"),
        (
            "ResourceInUse",
            "Training job names must be unique.",
            OptionError,
            ("job_name",),
            "conflict",
        ),
        ("ThrottlingException", "Rate exceeded", PassingError, (), "throttled"),
        ("OptInRequired", "The account is not subscribed.", SetupError, (), "refused"),
    ],
)
def test_refusal_of_a_job(aws, code, said, cls, about, kind):
    error = refused(aws, code, said)

    assert (cls, about, kind) == (type(error), error.about, error.kind)
    copy = pickle.loads(pickle.dumps(error))
    assert (type(error), error.as_dict()) == (type(copy), copy.as_dict())


def test_refusal_as_a_sentence(aws):
    """The error has the operation, AWS's code and message, and the IAM policy that is missing."""
    assert (
        "SageMaker in region eu-west-1 did not start job 'job': AccessDeniedException:"
        f" {USER}{PASS_ROLE}. Allow these credentials iam:PassRole on {ROLE} (an IAM policy), or"
        " use others."
    ) == str(refused(aws, "AccessDeniedException", f"{USER}{PASS_ROLE}."))


@pytest.mark.parametrize(
    ("said", "allow"),
    [
        (f"{USER}{PASS_ROLE}", {"iam:PassRole", ROLE}),
        (
            f"{USER}sagemaker:CreateTrainingJob on resource: arn:aws:sagemaker:x because no"
            " identity-based policy allows it",
            {"sagemaker:CreateTrainingJob", "arn:aws:sagemaker:x"},
        ),
        ("", {"sagemaker:CreateTrainingJob"}),
    ],
)
def test_hint_names_what_is_not_allowed(aws, said, allow):
    """The hint names action and resource of AWS's message; without one, the action called."""
    hint = refused(aws, "AccessDeniedException", said).hint

    assert allow == {word for word in hint.split() if ":" in word}


def test_server_fault_passes(aws):
    with Stubber(aws._api._sagemaker) as stub:
        stub.add_client_error("describe_training_job", "InternalFailure", http_status_code=500)
        with pytest.raises(PassingError) as raised:
            aws.describe("job")

    assert "server_fault" == raised.value.kind


def test_logs_that_may_not_be_read(aws):
    """The hint names CloudWatch's permission, even if AWS's message does not."""
    with Stubber(aws._api._logs) as stub:
        stub.add_client_error("filter_log_events", "AccessDeniedException", "No.")
        with pytest.raises(DeniedError) as raised:
            aws._api.events("job", 0, None)

    assert "logs:FilterLogEvents" in raised.value.hint


def test_request_that_boto3_refuses(aws):
    """A request that boto3 refuses is an OptionError, and nothing is sent."""
    request = {key: value for key, value in REQUEST.items() if key != "RoleArn"}
    with pytest.raises(OptionError) as raised:
        aws.start(request)

    assert "invalid_request" == raised.value.kind
    assert '"RoleArn"' in raised.value.why


def test_no_region():
    with pytest.raises(SetupError) as raised:
        SageMakerRunner(boto3.Session("testing", "testing")).start(REQUEST)

    assert "no_region" == raised.value.kind


def test_no_credentials():
    with pytest.raises(SetupError) as raised:
        SageMakerRunner(boto3.Session(region_name="eu-west-1")).start(REQUEST)

    assert "no_credentials" == raised.value.kind


def test_unknown_profile(monkeypatch):
    monkeypatch.setenv("AWS_PROFILE", "nobody")
    with pytest.raises(SetupError) as raised:
        SageMakerRunner().start(REQUEST)

    assert "unknown_profile" == raised.value.kind


@pytest.mark.parametrize(
    ("error", "cls", "kind"),
    [
        (NoCredentialsError(), SetupError, "no_credentials"),
        (PartialCredentialsError(provider="env", cred_var="x"), SetupError, "no_credentials"),
        (UnauthorizedSSOTokenError(), SetupError, "bad_credentials"),
        (EndpointConnectionError(endpoint_url="https://x"), PassingError, "unreachable"),
        (SSLError(endpoint_url="https://x", error="y"), PassingError, "unreachable"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_what_keeps_a_request_from_being_sent(error, cls, kind):
    with pytest.raises(cls) as raised, translated("WHAT", "job", "r"):
        raise error

    assert ("WHAT", kind) == (raised.value.what, raised.value.kind)
    assert error is raised.value.__cause__
