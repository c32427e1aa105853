# SPDX-License-Identifier: Apache-2.0
"""Amazon ECR: where an account keeps its images, and the pass to push there."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Final

from sagemaker_dist.errors import SetupError
from sagemaker_dist.packaging.aws import aws_refusals, where
from sagemaker_dist.packaging.facts import other_versions, versions_in
from sagemaker_dist.packaging.frameworks import REPOSITORY, default_tag

_BUILD_AND_PUSH: Final = (
    "Run: sagemaker-dist image build --framework {framework}, then:"
    " sagemaker-dist image push --framework {framework} --create"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Pass:
    """What a push to ECR needs; valid for twelve hours and never stored.

    Attributes:
        repository_uri: With the registry's host, without a tag.
    """

    repository_uri: str
    username: str
    password: str = field(repr=False)


def ecr_image(session: Any, framework: str, repository: str = REPOSITORY) -> str:
    """The URI of this version's image in the registry of a session's account and region.

    Raises:
        SetupError: There is none, or ECR cannot be asked.
        SkewError: The repository holds other versions only.
    """
    tag = default_tag(framework).rpartition(":")[2]
    mend = _BUILD_AND_PUSH.format(framework=framework)
    with aws_refusals(session, "Amazon ECR"):
        ecr = _client(session)
        try:
            uri = _repository_uri(ecr, repository)
            tags = list(_tags(ecr, repository))
        except ecr.exceptions.RepositoryNotFoundException:
            raise SetupError(
                f"there is no ECR repository {repository!r} in {where(session)}",
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
    with aws_refusals(session, "Amazon ECR"):
        ecr = _client(session)
        try:
            uri = _repository_uri(ecr, repository)
        except ecr.exceptions.RepositoryNotFoundException:
            if not create:
                raise SetupError(
                    f"there is no ECR repository {repository!r} in {where(session)}",
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
