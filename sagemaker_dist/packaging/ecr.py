# SPDX-License-Identifier: Apache-2.0
"""Amazon ECR: where an account keeps its images, and the pass to push there."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final

from sagemaker_dist.errors import OptionError, SetupError
from sagemaker_dist.packaging.facts import other_versions, versions_in
from sagemaker_dist.packaging.frameworks import REPOSITORY, default_tag

_BUILD_AND_PUSH: Final = (
    "Run: sagemaker-dist image build --framework {framework}, then:"
    " sagemaker-dist image push --framework {framework} --create"
)
_ALLOW: Final = "Allow these credentials {action} (an IAM policy), or use others"


@dataclass(frozen=True, slots=True, kw_only=True)
class Pass:
    """What a push to ECR needs; valid for twelve hours and never stored.

    Attributes:
        repository_uri: With the registry's host, without a tag.
    """

    repository_uri: str
    username: str
    password: str = field(repr=False)


def boto_session(region: str | None = None, profile: str | None = None) -> Any:
    """A session of boto3, with its own settings for what is None.

    Raises:
        SetupError: There is no such profile.
    """
    import boto3
    from botocore.exceptions import ProfileNotFound

    try:
        return boto3.Session(region_name=region, profile_name=profile)
    except ProfileNotFound as error:
        mend = "Run aws configure --profile, or name another"
        raise SetupError("there are no AWS settings", str(error), mend) from error


def ecr_image(session: Any, framework: str, repository: str = REPOSITORY) -> str:
    """The URI of this version's image in the registry of a session's account and region.

    Raises:
        SetupError: There is none, or ECR cannot be asked.
        SkewError: The repository holds other versions only.
    """
    tag = default_tag(framework).rpartition(":")[2]
    mend = _BUILD_AND_PUSH.format(framework=framework)
    with _translated(session):
        ecr = _client(session)
        try:
            uri = _repository_uri(ecr, repository)
            tags = list(_tags(ecr, repository))
        except ecr.exceptions.RepositoryNotFoundException:
            raise SetupError(
                f"there is no ECR repository {repository!r} in {_where(session)}",
                "a job needs an image, and none was given",
                f"{mend}, or pass image_uri",
            ) from None
    if tag in tags:
        return f"{uri}:{tag}"
    others = versions_in(iter(tags), framework)
    if others:
        raise other_versions(f"the images for {framework} in {uri}", others, mend)
    raise SetupError(
        f"the ECR repository {uri} has no image {tag!r}",
        "a job needs an image, and none was given",
        f"{mend}, or pass image_uri",
    )


def ecr_pass(session: Any, repository: str, *, create: bool) -> Pass:
    """Ask for a token, and for the repository, which is created if that was asked for.

    Raises:
        SetupError: There is no such repository, or ECR cannot be asked.
    """
    with _translated(session):
        ecr = _client(session)
        try:
            uri = _repository_uri(ecr, repository)
        except ecr.exceptions.RepositoryNotFoundException:
            if not create:
                raise SetupError(
                    f"there is no ECR repository {repository!r} in {_where(session)}",
                    "a push does not create one unless asked",
                    "Pass --create (create=True)",
                ) from None
            created = ecr.create_repository(repositoryName=repository)
            uri = created["repository"]["repositoryUri"]
        token = ecr.get_authorization_token()["authorizationData"][0]["authorizationToken"]
    username, _, password = base64.b64decode(token).decode().partition(":")
    return Pass(repository_uri=uri, username=username, password=password)


def _client(session: Any) -> Any:
    return session.client("ecr")


def _repository_uri(ecr: Any, repository: str) -> str:
    found = ecr.describe_repositories(repositoryNames=[repository])
    uri: str = found["repositories"][0]["repositoryUri"]
    return uri


def _tags(ecr: Any, repository: str) -> Iterator[str]:
    pages = ecr.get_paginator("describe_images").paginate(
        repositoryName=repository, filter={"tagStatus": "TAGGED"}
    )
    for page in pages:
        for image in page["imageDetails"]:
            yield from image.get("imageTags", [])


def _where(session: Any) -> str:
    return f"region {session.region_name}"


@contextmanager
def _translated(session: Any) -> Iterator[None]:
    """What boto3 raises, with its mend."""
    from botocore import exceptions

    what = f"Amazon ECR in {_where(session)} cannot be asked"
    try:
        yield
    except exceptions.NoRegionError as error:
        raise SetupError(
            "no AWS region is set", str(error).rstrip("."), "Set AWS_REGION, or a session's region"
        ) from error
    except (exceptions.NoCredentialsError, exceptions.PartialCredentialsError) as error:
        why = str(error).rstrip(".")
        raise SetupError(what, why, "Run aws configure, or set AWS_PROFILE") from error
    except exceptions.ParamValidationError as error:
        raise OptionError("a request to ECR is not valid", str(error), "Correct it") from error
    except exceptions.ClientError as error:
        raise _refused(what, error) from error
    except exceptions.BotoCoreError as error:
        raise SetupError(what, str(error).rstrip("."), "Check network and region") from error


def _refused(what: str, error: Any) -> SetupError:
    code = error.response["Error"]["Code"]
    why = f"{code}: {error.response['Error'].get('Message', '')}".rstrip(". :")
    if code.startswith("AccessDenied"):
        return SetupError(what, why, _ALLOW.format(action=f"ecr:{error.operation_name}"))
    return SetupError(what, why, "Renew the credentials (aws sso login, aws configure)")
