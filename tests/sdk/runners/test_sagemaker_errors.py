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

from sagemaker_dist.errors import JobError, OptionError, SetupError
from sagemaker_dist.runners import SageMakerRunner
from sagemaker_dist.runners.sagemaker.api_errors import DeniedError, PassingError, translated

USER = "User: arn:aws:sts::123456789012:assumed-role/notebook/me is not authorized to perform: "
ROLE = "arn:aws:iam::123456789012:role/training"
START = "SageMaker in region eu-west-1 did not start job 'job'"
RENEW = "Renew the credentials (aws sso login, aws configure)."
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


@pytest.mark.parametrize(
    ("code", "said", "kind", "expected"),
    [
        (
            "ExpiredTokenException",
            "The security token included in the request is expired",
            SetupError,
            f"{START}: ExpiredTokenException: The security token included in the request is"
            f" expired. {RENEW}",
        ),
        (
            "ExpiredToken",
            "The provided token has expired.",
            SetupError,
            f"{START}: ExpiredToken: The provided token has expired. {RENEW}",
        ),
        (
            "UnrecognizedClientException",
            "The security token included in the request is invalid.",
            SetupError,
            f"{START}: UnrecognizedClientException: The security token included in the request"
            f" is invalid. {RENEW}",
        ),
        (
            "InvalidSignatureException",
            "Signature expired: 20261121T000000Z is now earlier than 20261121T010000Z",
            SetupError,
            f"{START}: InvalidSignatureException: Signature expired: 20261121T000000Z is now"
            " earlier than 20261121T010000Z. Correct this machine's clock.",
        ),
        (
            "InvalidSignatureException",
            "The request signature we calculated does not match the signature you provided.",
            SetupError,
            f"{START}: InvalidSignatureException: The request signature we calculated does not"
            f" match the signature you provided. {RENEW}",
        ),
        (
            "AccessDeniedException",
            f"{USER}sagemaker:CreateTrainingJob on resource: arn:aws:sagemaker:x because no"
            " identity-based policy allows it",
            DeniedError,
            f"{START}: AccessDeniedException: {USER}sagemaker:CreateTrainingJob on resource:"
            " arn:aws:sagemaker:x because no identity-based policy allows it. Allow these"
            " credentials sagemaker:CreateTrainingJob on arn:aws:sagemaker:x (an IAM policy),"
            " or use others.",
        ),
        (
            "AccessDeniedException",
            f"{USER}iam:PassRole on resource: {ROLE} because no policy allows it",
            DeniedError,
            f"{START}: AccessDeniedException: {USER}iam:PassRole on resource: {ROLE} because no"
            f" policy allows it. Allow these credentials iam:PassRole on {ROLE} (an IAM policy),"
            " or use others.",
        ),
        (
            "AccessDeniedException",
            "",
            DeniedError,
            f"{START}: AccessDeniedException. Allow these credentials"
            " sagemaker:CreateTrainingJob (an IAM policy), or use others.",
        ),
        (
            "ResourceLimitExceeded",
            "The account-level service limit 'ml.p4d.24xlarge for training job usage' is 0"
            " Instances, with current utilization of 0 Instances.",
            JobError,
            f"{START}: ResourceLimitExceeded: The account-level service limit 'ml.p4d.24xlarge"
            " for training job usage' is 0 Instances, with current utilization of 0 Instances."
            " Request more in AWS's Service Quotas (Amazon SageMaker), or use another instance"
            " type or region.",
        ),
        (
            "ValidationException",
            "Could not assume role. Please ensure that the role exists.",
            OptionError,
            "SageMaker refuses a request for job 'job': ValidationException: Could not assume"
            " role. Please ensure that the role exists. Correct the options that SageMaker names.",
        ),
        (
            "ResourceNotFound",
            "Training plan not found.",
            OptionError,
            "SageMaker refuses a request for job 'job': ResourceNotFound: Training plan not"
            " found. Correct the options that SageMaker names.",
        ),
        (
            "ResourceInUse",
            "Training job names must be unique.",
            OptionError,
            "job_name is 'job': a job of this name exists in this account in region eu-west-1."
            " Pass another name, or leave job_name out.",
        ),
        (
            "ThrottlingException",
            "Rate exceeded",
            PassingError,
            f"{START}: ThrottlingException: Rate exceeded. Try again in a minute.",
        ),
        (
            "OptInRequired",
            "The account is not subscribed.",
            SetupError,
            f"{START}: OptInRequired: The account is not subscribed. Correct the setting that AWS's"
            " message names.",
        ),
    ],
)
def test_refusal_of_a_job(aws, code, said, kind, expected):
    with Stubber(aws._api._sagemaker) as stub:
        stub.add_client_error("create_training_job", code, said)
        with pytest.raises(kind) as raised:
            aws.start(REQUEST)

    assert expected == str(raised.value)
    copy = pickle.loads(pickle.dumps(raised.value))
    assert (type(raised.value), expected) == (type(copy), str(copy))


def test_server_fault_passes(aws):
    with Stubber(aws._api._sagemaker) as stub:
        stub.add_client_error("describe_training_job", "InternalFailure", http_status_code=500)
        with pytest.raises(PassingError, match="InternalFailure"):
            aws.describe("job")


def test_logs_that_may_not_be_read(aws):
    """The hint names CloudWatch's permission, even if AWS's message does not."""
    with Stubber(aws._api._logs) as stub:
        stub.add_client_error("filter_log_events", "AccessDeniedException", "No.")
        with pytest.raises(DeniedError) as raised:
            aws._api.events("job", 0, None)

    assert (
        "CloudWatch in region eu-west-1 did not return the log of 'job':"
        " AccessDeniedException: No. Allow these credentials logs:FilterLogEvents (an IAM"
        " policy), or use others." == str(raised.value)
    )


def test_request_that_boto3_refuses(aws):
    """A request that boto3 refuses is an OptionError, and nothing is sent."""
    request = {key: value for key, value in REQUEST.items() if key != "RoleArn"}
    with pytest.raises(OptionError) as raised:
        aws.start(request)

    assert (
        "the request of job 'job' is not valid: Parameter validation failed: Missing required"
        ' parameter in input: "RoleArn". Correct the options that it names.' == str(raised.value)
    )


def test_no_region():
    with pytest.raises(SetupError) as raised:
        SageMakerRunner(boto3.Session("testing", "testing")).start(REQUEST)

    assert (
        "no AWS region is set: You must specify a region."
        " Set AWS_DEFAULT_REGION, or pass a session with a region." == str(raised.value)
    )


def test_no_credentials():
    with pytest.raises(SetupError) as raised:
        SageMakerRunner(boto3.Session(region_name="eu-west-1")).start(REQUEST)

    assert f"{START}: Unable to locate credentials. Run aws configure, or set AWS_PROFILE." == str(
        raised.value
    )


def test_unknown_profile(monkeypatch):
    monkeypatch.setenv("AWS_PROFILE", "nobody")
    with pytest.raises(SetupError, match="\\(nobody\\)"):
        SageMakerRunner().start(REQUEST)


@pytest.mark.parametrize(
    ("error", "kind", "hint"),
    [
        (NoCredentialsError(), SetupError, "Run aws configure"),
        (PartialCredentialsError(provider="env", cred_var="x"), SetupError, "Run aws configure"),
        (UnauthorizedSSOTokenError(), SetupError, "aws sso login"),
        (EndpointConnectionError(endpoint_url="https://x"), PassingError, "Check the network"),
        (SSLError(endpoint_url="https://x", error="y"), PassingError, "Check the network"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_what_keeps_a_request_from_being_sent(error, kind, hint):
    with pytest.raises(kind, match="it failed") as raised, translated("it failed", "job", "r"):
        raise error

    assert hint in raised.value.hint
    assert error is raised.value.__cause__
