# SPDX-License-Identifier: Apache-2.0
"""AWS actions that a user and a job's role need for a job, and IAM policies that allow them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from sagemaker_dist.catalog import training_instances
from sagemaker_dist.cli.dry_run_session import ACCOUNT, REGION, partition_of
from sagemaker_dist.cli.job_names import code_of, names_of
from sagemaker_dist.contract.job_secret import SUFFIX
from sagemaker_dist.jobs import TrainingJob
from sagemaker_dist.jobs.job_checks import is_local
from sagemaker_dist.packaging.frameworks import REPOSITORY
from sagemaker_dist.planning.locations import S3

_EVERYTHING: Final = ("*",)
_ALWAYS_ALLOWED: Final = ("sts:GetCallerIdentity",)
_JOBS: Final = "/aws/sagemaker/TrainingJobs"
_LOGS: Final = (
    "logs:CreateLogGroup",
    "logs:CreateLogStream",
    "logs:DescribeLogStreams",
    "logs:PutLogEvents",
)
_PULL: Final = (
    "ecr:BatchCheckLayerAvailability",
    "ecr:BatchGetImage",
    "ecr:GetDownloadUrlForLayer",
)
_KEY_ACTIONS: Final = ("kms:Decrypt", "kms:Encrypt", "kms:GenerateDataKey")
_ROLE: Final = "the job's role"
_INTERFACES: Final = (
    "ec2:CreateNetworkInterface",
    "ec2:CreateNetworkInterfacePermission",
    "ec2:DeleteNetworkInterface",
    "ec2:DeleteNetworkInterfacePermission",
    "ec2:DescribeDhcpOptions",
    "ec2:DescribeNetworkInterfaces",
    "ec2:DescribeSecurityGroups",
    "ec2:DescribeSubnets",
    "ec2:DescribeVpcs",
)
_ECR: Final = re.compile(r"(?P<account>[^.]+)\.dkr\.ecr\.(?P<region>[^.]+)\.[^/]+/(?P<name>[^:@]+)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Permission:
    """AWS actions on resources, which a job needs for one purpose.

    Attributes:
        id: Statement ID ("Sid") in an IAM policy, such as "Code".
        actions: Actions, such as "s3:PutObject".
        resources: ARNs or patterns of ARNs; "*" is every resource.
        why: Purpose, in words.
        condition: Conditions of the statement as (operator, key, value); empty if it has none.
    """

    id: str
    actions: tuple[str, ...]
    resources: tuple[str, ...]
    why: str
    condition: tuple[tuple[str, str, str], ...] = ()

    def statement(self) -> dict[str, Any]:
        """Return the permission as a statement of an IAM policy."""
        conditions = {test: {key: value} for test, key, value in self.condition}
        return {
            "Sid": self.id,
            "Effect": "Allow",
            "Action": list(self.actions),
            "Resource": list(self.resources),
            **({"Condition": conditions} if conditions else {}),
        }


def policy(permissions: list[Permission]) -> dict[str, Any]:
    """Return an IAM policy that allows the actions of these permissions and no others.

    sts:GetCallerIdentity is left out, because AWS always allows it.
    """
    statements = [each.statement() for each in permissions if each.actions != _ALWAYS_ALLOWED]
    return {"Version": "2012-10-17", "Statement": statements}


def caller_permissions(
    job: TrainingJob, request: Mapping[str, Any], region: str
) -> list[Permission]:
    """Return the permissions that a user needs to submit, watch and stop a job.

    For a local job, these are the permissions to download its data from S3. `request` has the
    arguments of CreateTrainingJob; `region` is the AWS region of the job, for ARNs.
    """
    if is_local(job):
        return list(_data_downloads(request))
    return [*_preparation(job, request, region), *_job_calls(job, request, region)]


def role_permissions(job: TrainingJob, request: Mapping[str, Any]) -> list[Permission]:
    """Return the permissions that the job's IAM role needs, on the resources that the job uses.

    The list is empty for a local job. `request` has the arguments of CreateTrainingJob. Source:
    Amazon SageMaker Developer Guide, "CreateTrainingJob API: Execution Role Permissions", read
    2026-11-21.
    """
    if is_local(job):
        return []
    return [*_data(job, request), *_service(request), *_interfaces(request)]


def _data(job: TrainingJob, request: Mapping[str, Any]) -> Iterator[Permission]:
    exact, code = code_of(job)
    data = [each for each in _places(request) if each != exact]
    kept = [request["CheckpointConfig"]["S3Uri"]] if "CheckpointConfig" in request else []
    output = request["OutputDataConfig"]["S3OutputPath"]
    below = [f"{each.rstrip('/')}/*" for each in kept]
    objects = [code] if code.endswith("*") else [code, f"{code}{SUFFIX}"]  # code and secret
    read = [*(_prefix(each) for each in data), *(objects if code else ()), *below]
    written = [f"{output.rstrip('/')}/*", *below]
    buckets = [_arn(each).partition("/")[0] for each in (*_places(request), *kept, output)]
    if read:
        yield _on("Read", ("s3:GetObject",), [_arn(each) for each in read])
    yield _on("Write", ("s3:PutObject",), [_arn(each) for each in written])
    yield _on("List", ("s3:ListBucket",), buckets)


def _service(request: Mapping[str, Any]) -> Iterator[Permission]:
    image = _ECR.match(request["AlgorithmSpecification"]["TrainingImage"])
    if image:
        where = f"arn:aws:ecr:{image['region']}:{image['account']}:repository/{image['name']}"
        yield _on("Token", ("ecr:GetAuthorizationToken",), _EVERYTHING)
        yield _on("Pull", _PULL, [where])
    yield _on("Logs", _LOGS, [f"arn:aws:logs:{REGION}:{ACCOUNT}:log-group:{_JOBS}*"])
    yield _on("Metrics", ("cloudwatch:PutMetricData",), _EVERYTHING)
    output = request["OutputDataConfig"].get("KmsKeyId")
    if output:
        yield _on_key("Key", _KEY_ACTIONS, output, _ROLE)
    volume = request["ResourceConfig"].get("VolumeKmsKeyId")
    if volume:
        yield _on_key("Volume", ("kms:CreateGrant",), volume, _ROLE)


def _interfaces(request: Mapping[str, Any]) -> Iterator[Permission]:
    if "VpcConfig" in request:
        yield _on("Interfaces", _INTERFACES, _EVERYTHING)


def _on(name: str, actions: Sequence[str], resources: Sequence[str]) -> Permission:
    unique = tuple(dict.fromkeys(resources))
    return Permission(id=name, actions=tuple(actions), resources=unique, why=_ROLE)


def _on_key(name: str, actions: Sequence[str], key: str, why: str) -> Permission:
    """Return a permission to use the KMS key that `key`, its ARN, id or alias, names.

    IAM knows no alias as a resource of such actions. For an alias, the resource is therefore every
    key of that account and region, with the condition that the key has this alias.
    """
    place, _, known = key.rpartition(":")
    place = place or f"arn:aws:kms:{REGION}:{ACCOUNT}"
    condition: tuple[tuple[str, str, str], ...] = ()
    if known.startswith("alias/"):
        resource = f"{place}:key/*"
        condition = (("ForAnyValue:StringEquals", "kms:ResourceAliases", known),)
    else:
        resource = f"{place}:key/{known.removeprefix('key/')}"
    return Permission(
        id=name, actions=tuple(actions), resources=(resource,), why=why, condition=condition
    )


def _preparation(job: TrainingJob, request: Mapping[str, Any], region: str) -> Iterator[Permission]:
    """Yield the permissions that a user needs before a job is submitted.

    Such permissions are needed to upload the job's code, and to look up the bucket, the role's ARN
    or the image if the job's options leave them out.
    """
    role = str(job.role)
    if job.output_path is None:
        yield Permission(
            id="Account",
            actions=_ALWAYS_ALLOWED,
            resources=_EVERYTHING,
            why="the account, whose SageMaker bucket gets the model",
        )
    if "/" not in role and not role.startswith("arn:"):
        yield Permission(
            id="Role",
            actions=("iam:GetRole",),
            resources=(request["RoleArn"],),
            why=f"the ARN of role {role}",
        )
    yield from _image_lookups(job, request, region)
    if job._uploads:
        yield Permission(
            id="Code",
            actions=("s3:PutObject",),
            resources=(_arn(code_of(job)[1]),),
            why="the code is uploaded",
        )
        if job.output_kms_key:
            actions = ("kms:GenerateDataKey",)
            yield _on_key("Key", actions, job.output_kms_key, "the code is encrypted")


def _image_lookups(
    job: TrainingJob, request: Mapping[str, Any], region: str
) -> Iterator[Permission]:
    """Yield the permissions to find the image, and to read for which GPUs it has code."""
    if job.image_uri is None:
        yield Permission(
            id="Image",
            actions=("ecr:DescribeImages", "ecr:DescribeRepositories"),
            resources=(f"arn:aws:ecr:{region}:{ACCOUNT}:repository/{REPOSITORY}",),
            why="where this version's image is",
        )
    image = _ECR.match(request["AlgorithmSpecification"]["TrainingImage"])
    if image and _has_gpus(request):
        where = f"arn:aws:ecr:{image['region']}:{image['account']}:repository/{image['name']}"
        yield Permission(
            id="Labels",
            actions=("ecr:BatchGetImage", "ecr:GetDownloadUrlForLayer"),
            resources=(where,),
            why="which GPUs the image has code for",
        )


def _has_gpus(request: Mapping[str, Any]) -> bool:
    resources, known = request["ResourceConfig"], training_instances()
    types = [each["InstanceType"] for each in resources.get("InstanceGroups", [resources])]
    return any(name in known and known[name].has_gpu for name in types)


def _job_calls(job: TrainingJob, request: Mapping[str, Any], region: str) -> Iterator[Permission]:
    jobs = tuple(
        f"arn:aws:sagemaker:{region}:{ACCOUNT}:training-job/{name}" for name in names_of(job)
    )
    plan = request["ResourceConfig"].get("TrainingPlanArn")
    extra = ("sagemaker:AddTags",) if request.get("Tags") else ()
    yield Permission(
        id="Job",
        actions=(
            *extra,
            "sagemaker:CreateTrainingJob",
            "sagemaker:DescribeTrainingJob",
            "sagemaker:StopTrainingJob",
        ),
        resources=(*jobs, plan) if plan else jobs,
        why="the job is started, watched and stopped",
    )
    yield Permission(
        id="Pass",
        actions=("iam:PassRole",),
        resources=(request["RoleArn"],),
        why="the job runs with the role's permissions",
        condition=(("StringEquals", "iam:PassedToService", "sagemaker.amazonaws.com"),),
    )
    yield Permission(
        id="Logs",
        actions=("logs:FilterLogEvents",),
        resources=(f"arn:aws:logs:{region}:{ACCOUNT}:log-group:{_JOBS}:*",),
        why="the output of the hosts is read",
    )


def _data_downloads(request: Mapping[str, Any]) -> Iterator[Permission]:
    """Yield the permissions to download a local job's data from S3."""
    places = _places(request)
    if places:
        yield Permission(
            id="Data",
            actions=("s3:GetObject",),
            resources=tuple(_arn(_prefix(each)) for each in places),
            why="data is downloaded",
        )
        yield Permission(
            id="Names",
            actions=("s3:ListBucket",),
            resources=tuple(dict.fromkeys(_arn(each).partition("/")[0] for each in places)),
            why="the names of objects are listed",
        )


def _places(request: Mapping[str, Any]) -> list[str]:
    """Return the S3 URIs of the input channels in a request; channels not in S3 are left out."""
    sources = [each["DataSource"] for each in request.get("InputDataConfig", [])]
    return [each["S3DataSource"]["S3Uri"] for each in sources if "S3DataSource" in each]


def _prefix(place: str) -> str:
    """Return the pattern `bucket/key*`, which matches all objects below an S3 URI."""
    bucket, _, key = place.removeprefix(S3).partition("/")
    return f"{bucket}/{key}*"


def _arn(place: str) -> str:
    return f"arn:aws:s3:::{place.removeprefix(S3)}"


def fill_in(document: Any, *, account: str, region: str) -> Any:
    """Return a JSON document in which <account> and <region> are replaced by these values.

    ARNs get the partition of the region, such as "aws-cn".
    """
    if isinstance(document, str):
        text = document.replace(ACCOUNT, account).replace(REGION, region)
        return text.replace("arn:aws:", f"arn:{partition_of(region)}:")
    if isinstance(document, dict):
        return {
            name: fill_in(each, account=account, region=region) for name, each in document.items()
        }
    if isinstance(document, list):
        return [fill_in(each, account=account, region=region) for each in document]
    return document
