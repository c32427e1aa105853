# SPDX-License-Identifier: Apache-2.0
"""Checks of the AWS account: credentials, region, role, image, buckets, quotas."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from datetime import datetime, timezone
from functools import partial
from typing import Any, Final
from urllib.parse import unquote

from sagemaker_dist.cli.doctor.rows import Row, aws_rows, code_of, fail, ok, unknown, warn
from sagemaker_dist.cli.hosts import Hosts
from sagemaker_dist.errors import DistError, OptionError
from sagemaker_dist.packaging import ecr_image, remote_gpu_faults
from sagemaker_dist.packaging.ecr_labels import ECR_URI

SERVICE: Final = "sagemaker.amazonaws.com"
_SOON_MINUTES: Final = 60


def credentials_row(session: Any, now: datetime | None = None) -> Row:
    """Return the result of a check that AWS accepts the session's credentials.

    The result is a warning if the credentials expire within an hour after `now`, by default the
    current time.
    """
    from botocore.exceptions import BotoCoreError

    name, hint = "credentials", "Run aws configure or aws sso login, or set AWS_PROFILE"
    try:
        found = session.get_credentials()
    except BotoCoreError as error:  # such as a credential_process that fails
        return fail(name, str(error).rstrip("."), hint)
    if found is None:
        return fail(name, "no credentials were found", hint)
    if session.region_name is None:  # STS calls need a region
        text = f"found by {found.method}; not checked, because no region is set"
        return unknown(name, text, "Set AWS_DEFAULT_REGION, or pass --region")
    return next(
        iter(aws_rows(name, "sts:GetCallerIdentity", lambda: [_caller(session, found, now)]))
    )


def _caller(session: Any, found: Any, now: datetime | None) -> Row:
    arn = session.client("sts").get_caller_identity()["Arn"]
    ends = getattr(found, "_expiry_time", None)  # botocore has no public name for it
    if ends is None:
        return ok("credentials", f"{arn}, found by {found.method}")
    minutes = int((ends - (now or datetime.now(timezone.utc))).total_seconds() / 60)
    text = f"{arn}, found by {found.method}, valid for {minutes} minutes"
    if minutes < _SOON_MINUTES:
        return warn("credentials", text, "Renew the credentials before a long job (aws sso login)")
    return ok("credentials", text)


def region_row(session: Any) -> Row:
    """Return the result of a check that the boto3 session has an AWS region."""
    if session.region_name is None:
        return fail("region", "no region is set", "Set AWS_DEFAULT_REGION, or pass --region")
    return ok("region", session.region_name)


def role_rows(session: Any, role: str) -> Iterator[Row]:
    """Yield the result of a check that an IAM role exists and that SageMaker may assume it.

    `role` is the ARN or the name of the role.
    """
    yield from aws_rows("role", "iam:GetRole", lambda: [_role(session, role)])


def _role(session: Any, role: str) -> Row:
    iam, name = session.client("iam"), role.rpartition("/")[2]
    try:
        found = iam.get_role(RoleName=name)["Role"]
    except iam.exceptions.NoSuchEntityException:
        hint = "Correct `role`, or create it with a trust policy for sagemaker.amazonaws.com"
        return fail("role", f"there is no role {name!r}", hint)
    if role.startswith("arn:") and found["Arn"] != role:
        text = f"{role} does not exist; the role of this name is {found['Arn']}"
        return fail("role", text, f"Pass {found['Arn']}")
    if not _trusts(found["AssumeRolePolicyDocument"]):
        hint = f"Allow {SERVICE} sts:AssumeRole in the role's trust policy"
        return fail("role", f"{found['Arn']} does not trust {SERVICE}", hint)
    return ok("role", f"{found['Arn']} trusts SageMaker")


def _trusts(policy: Any) -> bool:
    document = json.loads(unquote(policy)) if isinstance(policy, str) else policy
    return any(
        each.get("Effect") == "Allow"
        and {"sts:AssumeRole", "sts:*", "*"} & set(_list(each.get("Action")))
        and SERVICE in _list(_services(each.get("Principal")))
        for each in _list(document.get("Statement"))
    )


def _services(principal: Any) -> Any:
    return principal.get("Service") if isinstance(principal, Mapping) else None


def _list(value: Any) -> list[Any]:
    if value is None:
        return []
    return value if isinstance(value, list) else [value]


def image_rows(session: Any, framework: str, image: str | None) -> Iterator[Row]:
    """Yield the result of a check that the training image is in ECR.

    `image` is the URI of the image. None stands for the image that this version of sagemaker-dist
    uses for `framework`, "torch" or "tensorflow".
    """
    action = "ecr:DescribeImages"
    if image is None:
        yield from aws_rows("image", action, lambda: [ok("image", ecr_image(session, framework))])
        return
    place = ECR_URI.fullmatch(image)
    if place is None:
        yield unknown("image", f"{image} is not in ECR, so it is not checked")
        return
    yield from aws_rows("image", action, lambda: [_named_image(session, image, place)])


def gpu_code_rows(
    session: Any, framework: str, image: str | None, types: Iterable[str]
) -> Iterator[Row]:
    """Yield a result for each instance type whose GPUs the training image has no code for.

    Nothing is yielded if that is not known. The arguments are those of `image_rows`; `types` are
    the names of the job's instance types.
    """
    for fault in _gpu_faults(session, framework, image, types):
        yield fail("GPU code", f"{fault.what}: {fault.why}", fault.hint)


def _gpu_faults(
    session: Any, framework: str, image: str | None, types: Iterable[str]
) -> list[OptionError]:
    with suppress(DistError):  # a row of its own names the fault
        return list(remote_gpu_faults(session, image or ecr_image(session, framework), types))
    return []


def _named_image(session: Any, image: str, place: re.Match[str]) -> Row:
    if place["region"] != session.region_name:
        hint = f"Push it to {session.region_name}, or run the job in {place['region']}"
        return fail("image", f"{image} is in {place['region']}", hint)
    ecr = session.client("ecr")
    which = {"imageDigest": place["digest"]} if place["digest"] else {"imageTag": place["tag"]}
    which = which if any(which.values()) else {"imageTag": "latest"}
    try:
        ecr.describe_images(
            registryId=place["account"], repositoryName=place["name"], imageIds=[which]
        )
    except (ecr.exceptions.RepositoryNotFoundException, ecr.exceptions.ImageNotFoundException):
        return fail("image", f"there is no {image}", "Push it, or correct image_uri")
    return ok("image", image)


def bucket_rows(session: Any, buckets: Iterable[str]) -> Iterator[Row]:
    """Check that each S3 bucket exists in the session's region, and yield one result per bucket."""
    for bucket in buckets:
        call = partial(_bucket, session, bucket, f"s3 {bucket}")
        yield from aws_rows(f"s3 {bucket}", "s3:ListBucket", call)


def _bucket(session: Any, bucket: str, name: str) -> Iterator[Row]:
    yield _bucket_row(session, bucket, name)


def _bucket_row(session: Any, bucket: str, name: str) -> Row:
    from botocore.exceptions import ClientError

    try:
        answer = session.client("s3").head_bucket(Bucket=bucket)
    except ClientError as error:
        if code_of(error) in {"404", "NoSuchBucket"}:
            return fail(name, "there is no such bucket", f"Run: aws s3 mb s3://{bucket}")
        answer = error.response
        if code_of(error) not in {"301", "PermanentRedirect"}:
            raise
    headers = answer.get("ResponseMetadata", {}).get("HTTPHeaders", {})
    there = answer.get("BucketRegion") or headers.get("x-amz-bucket-region")
    if there and there != session.region_name:
        hint = f"Use a bucket in {session.region_name}, or run the job in {there}"
        return fail(
            name, f"the bucket is in {there}, but the job runs in {session.region_name}", hint
        )
    return ok(name, f"in {there or session.region_name}")


def quota_rows(session: Any, hosts: Iterable[Hosts], *, is_spot: bool) -> Iterator[Row]:
    """Yield the results of checks that the account's quotas allow the instances of a job.

    There is one result per instance type of `hosts`. Spot instances (`is_spot`) have other quotas.
    """
    kind = "spot training job usage" if is_spot else "training job usage"
    counts: dict[str, int] = {}
    for each in hosts:
        counts[each.type] = counts.get(each.type, 0) + each.count
    needed = {f"{type_} for {kind}": count for type_, count in counts.items()}

    def call() -> Iterator[Row]:
        known = _quotas(session)
        for quota, count in needed.items():
            yield _quota(quota, count, known)

    yield from aws_rows("quota", "servicequotas:ListServiceQuotas", call)


def _quotas(session: Any) -> dict[str, Any]:
    pages = session.client("service-quotas").get_paginator("list_service_quotas")
    return {
        each["QuotaName"]: each
        for page in pages.paginate(ServiceCode="sagemaker")
        for each in page["Quotas"]
    }


def _quota(quota: str, count: int, known: Mapping[str, Any]) -> Row:
    found = known.get(quota)
    if found is None:
        return unknown("quota", f"AWS lists no quota {quota}", "Look in the Service Quotas console")
    text = f"{quota}: {found['Value']:g}, and the job takes {count}"
    if found["Value"] >= count:
        return ok("quota", text)
    hint = (
        "Run: aws service-quotas request-service-quota-increase --service-code sagemaker"
        f" --quota-code {found['QuotaCode']} --desired-value {count}"
    )
    return fail("quota", text, hint)
