# SPDX-License-Identifier: Apache-2.0
"""Images and logins of Amazon ECR, played by moto."""

import json

import boto3
import pytest
from botocore.exceptions import ClientError
from moto import mock_aws

from sagemaker_dist.errors import SetupError, SkewError
from sagemaker_dist.packaging import boto_session, default_tag, ecr_image, role_arn
from sagemaker_dist.packaging.aws_session import aws_refusals
from sagemaker_dist.packaging.ecr import ecr_login

HOST = "123456789012.dkr.ecr.eu-west-1.amazonaws.com"
MANIFEST = {"schemaVersion": 2, "mediaType": "application/vnd.docker.distribution.manifest.v2+json"}


@pytest.fixture
def session():
    with mock_aws():
        yield boto3.Session("testing", "testing", region_name="eu-west-1")


@pytest.fixture
def holding(session):
    """Return a function that creates the repository with images of these tags."""

    def make(*tags: str, repository: str = "sagemaker-dist") -> None:
        ecr = session.client("ecr")
        ecr.create_repository(repositoryName=repository)
        for tag in tags:
            manifest = json.dumps({**MANIFEST, "layers": [], "tag": tag})
            ecr.put_image(repositoryName=repository, imageManifest=manifest, imageTag=tag)

    return make


def test_image_of_this_version(session, holding):
    """The image's URI is in the session's account and region."""
    tag = default_tag("torch").partition(":")[2]
    holding("0.0.1-torch", tag)

    assert f"{HOST}/sagemaker-dist:{tag}" == ecr_image(session, "torch")


def test_repository_of_ones_own(session, holding):
    """The repository may have another name."""
    tag = default_tag("torch").partition(":")[2]
    holding(tag, repository="team/images")

    assert f"{HOST}/team/images:{tag}" == ecr_image(session, "torch", "team/images")


def test_no_repository(session):
    """Without a repository, the hint has the commands to build and push the image."""
    with pytest.raises(SetupError) as raised:
        ecr_image(session, "torch")

    assert (("repository",), "not_found") == (raised.value.about, raised.value.kind)
    assert (
        "there is no ECR repository 'sagemaker-dist' in region eu-west-1: the job needs an image,"
        " and image_uri is left out. Run: sagemaker-dist image build --framework torch, then:"
        " sagemaker-dist image push --framework torch --create, or pass image_uri."
    ) == str(raised.value)


def test_only_other_versions(session, holding):
    """If only images of other versions exist, the error names them and this version."""
    holding("0.0.1-torch", "0.0.2-torch", "9.9.9-tensorflow")
    with pytest.raises(SkewError) as raised:
        ecr_image(session, "torch")

    assert "0.0.1, 0.0.2" in raised.value.what
    assert default_tag("torch").partition(":")[2].partition("-")[0] in raised.value.why


def test_only_another_framework(session, holding):
    """An image of another framework is not reported as another version."""
    holding("9.9.9-tensorflow")
    with pytest.raises(SetupError) as raised:
        ecr_image(session, "torch")

    assert (("image_uri",), "not_found") == (raised.value.about, raised.value.kind)


def test_pass(session):
    """The login has user and password from the token; `create` makes the repository; repr hides the
    password.
    """
    with pytest.raises(SetupError) as raised:
        ecr_login(session, "mine", create=False)
    access = ecr_login(session, "mine", create=True)

    assert (("repository",), "not_found") == (raised.value.about, raised.value.kind)
    assert f"{HOST}/mine" == access.repository_uri
    assert ("AWS", "123456789012-auth-token") == (access.username, access.password)
    assert access.password not in repr(access)
    assert access == ecr_login(session, "mine", create=False)


def test_no_region():
    with pytest.raises(SetupError) as raised:
        ecr_image(boto3.Session("testing", "testing"), "torch")

    assert "no_region" == raised.value.kind


def test_no_credentials():
    with pytest.raises(SetupError) as raised:
        ecr_image(boto3.Session(region_name="eu-west-1"), "torch")

    assert "no_credentials" == raised.value.kind


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        ("AccessDeniedException", "access_denied"),
        ("ExpiredTokenException", "bad_credentials"),
        ("ThrottlingException", "throttled"),
        ("SomethingElse", "refused"),
    ],
)
def test_refusals_of_ecr(session, code, kind):
    """The error has ECR's code, and a denied call the IAM action to allow."""
    refusal = ClientError({"Error": {"Code": code}}, "DescribeRepositories")
    with pytest.raises(SetupError) as raised, aws_refusals(session, "Amazon ECR"):
        raise refusal

    assert kind == raised.value.kind
    assert raised.value.why.startswith(code)
    assert ("ecr:DescribeRepositories" in raised.value.hint) == (kind == "access_denied")


def test_unknown_profile():
    """The error names a profile that does not exist."""
    with pytest.raises(SetupError) as raised:
        boto_session(profile="nobody")

    assert "unknown_profile" == raised.value.kind
    assert "(nobody)" in raised.value.why


def test_unknown_role(session):
    """The name of a role becomes its ARN, so the role must exist."""
    with pytest.raises(SetupError) as raised:
        role_arn(session, "nobody")

    assert (("role",), "not_found") == (raised.value.about, raised.value.kind)
