# SPDX-License-Identifier: Apache-2.0
"""Amazon ECR: URI of this version's image in an account's registry, and the login for a push."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Final

from sagemaker_dist.errors import SetupError
from sagemaker_dist.packaging.aws_session import aws_refusals, where
from sagemaker_dist.packaging.frameworks import REPOSITORY, default_tag
from sagemaker_dist.packaging.image_facts import other_versions, versions_in

_BUILD_AND_PUSH: Final = (
    "Run: sagemaker-dist image build --framework {framework}, then:"
    " sagemaker-dist image push --framework {framework} --create"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class EcrLogin:
    """User name and password for a push to ECR; valid for twelve hours, and never stored.

    Attributes:
        repository_uri: Registry host and repository, without a tag.
    """

    repository_uri: str
    username: str
    password: str = field(repr=False)


def ecr_image(session: Any, framework: str, repository: str = REPOSITORY) -> str:
    """Return the URI of this version's image of a framework in ECR.

    The registry is the one in the account and region of `session`, a boto3.Session.

    Raises:
        SetupError: There is no such image, or ECR does not answer.
        SkewError: The repository has only images of other versions.
    """
    tag = default_tag(framework).rpartition(":")[2]
    hint = _BUILD_AND_PUSH.format(framework=framework)
    with aws_refusals(session, "Amazon ECR"):
        ecr = _client(session)
        try:
            uri = _repository_uri(ecr, repository)
            tags = list(_tags(ecr, repository))
        except ecr.exceptions.RepositoryNotFoundException:
            raise SetupError(
                f"there is no ECR repository {repository!r} in {where(session)}",
                "the job needs an image, and image_uri is left out",
                f"{hint}, or pass image_uri",
                about="repository",
                kind="not_found",
            ) from None
    if tag in tags:
        return f"{uri}:{tag}"
    others = versions_in(iter(tags), framework)
    if others:
        raise other_versions(f"the images for {framework} in {uri}", others, hint)
    raise SetupError(
        f"the ECR repository {uri} has no image {tag!r}",
        "the job needs an image, and image_uri is left out",
        f"{hint}, or pass image_uri",
        about="image_uri",
        kind="not_found",
    )


def ecr_login(session: Any, repository: str, *, create: bool) -> EcrLogin:
    """Return a login to push to an ECR repository, in the account and region of `session`.

    With `create`, the repository is created if it does not exist.

    Raises:
        SetupError: The repository does not exist, or ECR does not answer.
    """
    with aws_refusals(session, "Amazon ECR"):
        ecr = _client(session)
        try:
            uri = _repository_uri(ecr, repository)
        except ecr.exceptions.RepositoryNotFoundException:
            if not create:
                raise SetupError(
                    f"there is no ECR repository {repository!r} in {where(session)}",
                    "a push creates a repository only with --create",
                    "Pass --create (create=True)",
                    about="repository",
                    kind="not_found",
                ) from None
            created = ecr.create_repository(repositoryName=repository)
            uri = created["repository"]["repositoryUri"]
        token = ecr.get_authorization_token()["authorizationData"][0]["authorizationToken"]
    username, _, password = base64.b64decode(token).decode().partition(":")
    return EcrLogin(repository_uri=uri, username=username, password=password)


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
