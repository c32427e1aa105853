# SPDX-License-Identifier: Apache-2.0
"""Session with boto3's methods that never calls AWS and returns placeholders such as `<account>`.

The clients of this session have the methods that a training job calls before it is submitted. So
the command `plan` can show the request that the command `submit` will send.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

from sagemaker_dist.packaging import FRAMEWORKS, default_tag

ACCOUNT: Final = "<account>"
REGION: Final = "<region>"
MEANINGS: Final = {
    ACCOUNT: "the account's number, which only AWS knows",
    REGION: "no region is set: set AWS_DEFAULT_REGION, pass --region, or run aws configure",
}


def partition_of(region: str) -> str:
    """Return the AWS partition of a region, as in ARNs: "aws", "aws-cn" or "aws-us-gov"."""
    parts = {"cn-": "aws-cn", "us-gov-": "aws-us-gov"}
    return next((name for start, name in parts.items() if region.startswith(start)), "aws")


class Unanswered(Exception):  # noqa: N818 - it is never raised
    """Exception class that is never raised; it replaces exceptions of boto3 in `except` clauses."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DryRunSession:
    """Replacement for boto3.Session whose clients return placeholders instead of calling AWS.

    Attributes:
        region: Region from AWS's own settings; None if no region is set.
    """

    region: str | None = None

    @property
    def region_name(self) -> str:
        """Return the region, or the placeholder "<region>" if no region is set."""
        return self.region or REGION

    def client(self, service: str) -> DryRunClient:
        """Return a client of a service, such as "iam", that returns placeholders."""
        return DryRunClient(service, self.region_name)


class _Exceptions:
    NoSuchEntityException: Final = Unanswered
    RepositoryNotFoundException: Final = Unanswered


@dataclass(frozen=True, slots=True)
class DryRunClient:
    """Replacement for boto3's clients of STS, IAM and ECR that never calls AWS."""

    service: str
    region: str
    exceptions: Any = _Exceptions

    def get_caller_identity(self) -> dict[str, str]:
        """Return the placeholder "<account>" in place of the account's number."""
        return {"Account": ACCOUNT}

    def get_role(self, *, RoleName: str) -> dict[str, Any]:  # noqa: N803 - as boto3 spells it
        """Return a role with this name in the account "<account>", in the form of IAM's answer.

        The ARN assumes that the role's path is "/", as it is for most roles.
        """
        partition = partition_of(self.region)
        return {"Role": {"Arn": f"arn:{partition}:iam::{ACCOUNT}:role/{RoleName}"}}

    def describe_repositories(self, *, repositoryNames: list[str]) -> dict[str, Any]:  # noqa: N803
        """Return repositories in the account "<account>" with their URIs, as ECR does."""
        ending = ".cn" if partition_of(self.region) == "aws-cn" else ""
        host = f"{ACCOUNT}.dkr.ecr.{self.region}.amazonaws.com{ending}"
        return {"repositories": [{"repositoryUri": f"{host}/{name}"} for name in repositoryNames]}

    def get_paginator(self, _: str) -> DryRunClient:
        """Return this client itself as the paginator; its method `paginate` lists images."""
        return self

    def paginate(self, **_: Any) -> Iterator[dict[str, Any]]:
        """Yield one page with the tags of sagemaker-dist's images of this version.

        The page has the form of ECR's answer to DescribeImages, as if the images had been pushed.
        """
        tags = [default_tag(framework).rpartition(":")[2] for framework in FRAMEWORKS]
        yield {"imageDetails": [{"imageTags": tags}]}


def placeholders(text: str) -> dict[str, str]:
    """Return the placeholders that a text contains, such as "<region>", with their explanations.

    Keys are the placeholders, values the explanations for the user.
    """
    return {name: meaning for name, meaning in MEANINGS.items() if name in text}
