# SPDX-License-Identifier: Apache-2.0
"""What AWS is asked when a job is submitted, action by action; and the policy that allows it."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from sagemaker_dist.cli.own_names import code_of, names_of
from sagemaker_dist.cli.unasked import ACCOUNT, REGION, partition_of
from sagemaker_dist.jobs import TrainingJob
from sagemaker_dist.jobs.checks import is_local
from sagemaker_dist.packaging.frameworks import REPOSITORY
from sagemaker_dist.planning.locations import S3

_EVERYTHING: Final = ("*",)
_FREE: Final = ("sts:GetCallerIdentity",)
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
class Ask:
    """Actions that one thing takes.

    Attributes:
        id: Of the statement in a policy.
        why: What for, in words.
        condition: As in a policy, or empty.
    """

    id: str
    actions: tuple[str, ...]
    resources: tuple[str, ...]
    why: str
    condition: tuple[tuple[str, str, str], ...] = ()

    def statement(self) -> dict[str, Any]:
        """As a policy has it."""
        conditions = {test: {key: value} for test, key, value in self.condition}
        return {
            "Sid": self.id,
            "Effect": "Allow",
            "Action": list(self.actions),
            "Resource": list(self.resources),
            **({"Condition": conditions} if conditions else {}),
        }


def policy(asks: list[Ask]) -> dict[str, Any]:
    """An IAM policy that allows these and nothing else; who one is, anybody may ask."""
    statements = [each.statement() for each in asks if each.actions != _FREE]
    return {"Version": "2012-10-17", "Statement": statements}


def asks_of(job: TrainingJob, request: Mapping[str, Any], region: str) -> list[Ask]:
    """What submitting and watching a job takes; a job of this machine takes its data alone."""
    if is_local(job):
        return list(_reading(request))
    return [*_settling(job, request, region), *_running(job, request, region)]


def role_asks(job: TrainingJob, request: Mapping[str, Any]) -> list[Ask]:
    """What the job's role takes (SageMaker's guide, "CreateTrainingJob API: Execution Role
    Permissions", read 2026-11-21), narrowed to the places that the job names.

    A job of this machine has none.
    """
    if is_local(job):
        return []
    return [*_data(job, request), *_service(request), *_interfaces(request)]


def _data(job: TrainingJob, request: Mapping[str, Any]) -> Iterator[Ask]:
    exact, code = code_of(job)
    data = [each for each in _places(request) if each != exact]
    kept = [request["CheckpointConfig"]["S3Uri"]] if "CheckpointConfig" in request else []
    output = request["OutputDataConfig"]["S3OutputPath"]
    below = [f"{each.rstrip('/')}/*" for each in kept]
    read = [*(_prefix(each) for each in data), *filter(None, [code]), *below]
    written = [f"{output.rstrip('/')}/*", *below]
    buckets = [_arn(each).partition("/")[0] for each in (*_places(request), *kept, output)]
    if read:
        yield _on("Read", ("s3:GetObject",), [_arn(each) for each in read])
    yield _on("Write", ("s3:PutObject",), [_arn(each) for each in written])
    yield _on("List", ("s3:ListBucket",), buckets)


def _service(request: Mapping[str, Any]) -> Iterator[Ask]:
    image = _ECR.match(request["AlgorithmSpecification"]["TrainingImage"])
    if image:
        where = f"arn:aws:ecr:{image['region']}:{image['account']}:repository/{image['name']}"
        yield _on("Token", ("ecr:GetAuthorizationToken",), _EVERYTHING)
        yield _on("Pull", _PULL, [where])
    yield _on("Logs", _LOGS, [f"arn:aws:logs:{REGION}:{ACCOUNT}:log-group:{_JOBS}*"])
    yield _on("Metrics", ("cloudwatch:PutMetricData",), _EVERYTHING)
    output = request["OutputDataConfig"].get("KmsKeyId")
    if output:
        yield _on("Key", ("kms:Decrypt", "kms:Encrypt", "kms:GenerateDataKey"), [_key(output)])
    volume = request["ResourceConfig"].get("VolumeKmsKeyId")
    if volume:
        yield _on("Volume", ("kms:CreateGrant",), [_key(volume)])


def _interfaces(request: Mapping[str, Any]) -> Iterator[Ask]:
    if "VpcConfig" in request:
        yield _on("Interfaces", _INTERFACES, _EVERYTHING)


def _on(name: str, actions: Sequence[str], resources: Sequence[str]) -> Ask:
    unique = tuple(dict.fromkeys(resources))
    return Ask(id=name, actions=tuple(actions), resources=unique, why="the job's role")


def _key(key: str) -> str:
    """The ARN of a key that is named by it, or by its id; an alias has none of its own."""
    if key.startswith("arn:"):
        return key
    known = "*" if key.startswith("alias/") else key
    return f"arn:aws:kms:{REGION}:{ACCOUNT}:key/{known}"


def _settling(job: TrainingJob, request: Mapping[str, Any], region: str) -> Iterator[Ask]:
    """What the job leaves open, and its code."""
    role = str(job.role)
    if job.output_path is None:
        yield Ask(
            id="Account",
            actions=_FREE,
            resources=_EVERYTHING,
            why="the account, whose SageMaker bucket gets the model",
        )
    if "/" not in role and not role.startswith("arn:"):
        yield Ask(
            id="Role",
            actions=("iam:GetRole",),
            resources=(request["RoleArn"],),
            why=f"the ARN of role {role}",
        )
    if job.image_uri is None:
        yield Ask(
            id="Image",
            actions=("ecr:DescribeImages", "ecr:DescribeRepositories"),
            resources=(f"arn:aws:ecr:{region}:{ACCOUNT}:repository/{REPOSITORY}",),
            why="where this version's image is",
        )
    if job._uploads:
        yield Ask(
            id="Code",
            actions=("s3:PutObject",),
            resources=(_arn(code_of(job)[1]),),
            why="the code is uploaded",
        )
        if job.output_kms_key:
            yield Ask(
                id="Key",
                actions=("kms:GenerateDataKey",),
                resources=(_key(job.output_kms_key),),
                why="the code is encrypted",
            )


def _running(job: TrainingJob, request: Mapping[str, Any], region: str) -> Iterator[Ask]:
    jobs = tuple(
        f"arn:aws:sagemaker:{region}:{ACCOUNT}:training-job/{name}" for name in names_of(job)
    )
    plan = request["ResourceConfig"].get("TrainingPlanArn")
    extra = ("sagemaker:AddTags",) if request.get("Tags") else ()
    yield Ask(
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
    yield Ask(
        id="Pass",
        actions=("iam:PassRole",),
        resources=(request["RoleArn"],),
        why="the job runs with the role's permissions",
        condition=(("StringEquals", "iam:PassedToService", "sagemaker.amazonaws.com"),),
    )
    yield Ask(
        id="Logs",
        actions=("logs:FilterLogEvents",),
        resources=(f"arn:aws:logs:{region}:{ACCOUNT}:log-group:{_JOBS}:*",),
        why="what the hosts wrote is read",
    )


def _reading(request: Mapping[str, Any]) -> Iterator[Ask]:
    """Data in S3 of a job of this machine."""
    places = _places(request)
    if places:
        yield Ask(
            id="Data",
            actions=("s3:GetObject",),
            resources=tuple(_arn(_prefix(each)) for each in places),
            why="data is downloaded",
        )
        yield Ask(
            id="Names",
            actions=("s3:ListBucket",),
            resources=tuple(dict.fromkeys(_arn(each).partition("/")[0] for each in places)),
            why="the names of objects are listed",
        )


def _places(request: Mapping[str, Any]) -> list[str]:
    """Where channels have their data in S3."""
    sources = [each["DataSource"] for each in request.get("InputDataConfig", [])]
    return [each["S3DataSource"]["S3Uri"] for each in sources if "S3DataSource" in each]


def _prefix(place: str) -> str:
    """What begins so, in this bucket alone."""
    bucket, _, key = place.removeprefix(S3).partition("/")
    return f"{bucket}/{key}*"


def _arn(place: str) -> str:
    return f"arn:aws:s3:::{place.removeprefix(S3)}"


def placed(document: Any, *, account: str, region: str) -> Any:
    """The same with the placeholders filled in."""
    if isinstance(document, str):
        text = document.replace(ACCOUNT, account).replace(REGION, region)
        return text.replace("arn:aws:", f"arn:{partition_of(region)}:")
    if isinstance(document, dict):
        return {
            name: placed(each, account=account, region=region) for name, each in document.items()
        }
    if isinstance(document, list):
        return [placed(each, account=account, region=region) for each in document]
    return document
