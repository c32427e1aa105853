# SPDX-License-Identifier: Apache-2.0
"""A session that asks nobody: what only AWS knows stands in angle brackets.

It answers the four questions that a training job has before it is submitted, so that
`plan` shows the very request that `submit` makes.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

from sagemaker_dist.packaging import FRAMEWORKS, default_tag

ACCOUNT: Final = "<account>"
REGION: Final = "<region>"
MEANINGS: Final = {
    ACCOUNT: "the number of the account; STS knows it",
    REGION: "no region is set: AWS_DEFAULT_REGION, --region or aws configure say it",
}


def partition_of(region: str) -> str:
    """How ARNs of a region begin after "arn:"."""
    parts = {"cn-": "aws-cn", "us-gov-": "aws-us-gov"}
    return next((name for start, name in parts.items() if region.startswith(start)), "aws")


class Unanswered(Exception):  # noqa: N818 - it is never raised
    """What boto3's clients name in `except`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UnaskedSession:
    """As boto3.Session, with placeholders for answers.

    Attributes:
        region_name: As AWS's own settings have it, or None.
    """

    region: str | None = None

    @property
    def region_name(self) -> str:
        """The region, or its placeholder."""
        return self.region or REGION

    def client(self, service: str) -> UnaskedClient:
        """A client that answers with placeholders."""
        return UnaskedClient(service, self.region_name)


class _Exceptions:
    NoSuchEntityException: Final = Unanswered
    RepositoryNotFoundException: Final = Unanswered


@dataclass(frozen=True, slots=True)
class UnaskedClient:
    """As boto3's clients of STS, IAM and ECR."""

    service: str
    region: str
    exceptions: Any = _Exceptions

    def get_caller_identity(self) -> dict[str, str]:
        """Whose account it is."""
        return {"Account": ACCOUNT}

    def get_role(self, *, RoleName: str) -> dict[str, Any]:  # noqa: N803 - as boto3 spells it
        """The ARN of a role without a path, which most are."""
        partition = partition_of(self.region)
        return {"Role": {"Arn": f"arn:{partition}:iam::{ACCOUNT}:role/{RoleName}"}}

    def describe_repositories(self, *, repositoryNames: list[str]) -> dict[str, Any]:  # noqa: N803
        """Where the account keeps its images."""
        ending = ".cn" if partition_of(self.region) == "aws-cn" else ""
        host = f"{ACCOUNT}.dkr.ecr.{self.region}.amazonaws.com{ending}"
        return {"repositories": [{"repositoryUri": f"{host}/{name}"} for name in repositoryNames]}

    def get_paginator(self, _: str) -> UnaskedClient:
        """Pages of images: of itself."""
        return self

    def paginate(self, **_: Any) -> Iterator[dict[str, Any]]:
        """This version's images, as if they had been pushed."""
        tags = [default_tag(framework).rpartition(":")[2] for framework in FRAMEWORKS]
        yield {"imageDetails": [{"imageTags": tags}]}


def placeholders(text: str) -> dict[str, str]:
    """The placeholders of a text, and what they stand for."""
    return {name: meaning for name, meaning in MEANINGS.items() if name in text}
