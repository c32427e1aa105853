# SPDX-License-Identifier: Apache-2.0
"""Building of a CreateTrainingJob request, with the same fields as SageMaker's SDK v2 sends.

An option that is None is not in the request, so that the service uses its own default. Profiler and
debugger are off, because the sagemaker-dist image has neither.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from sagemaker_dist.contract import Distribution
from sagemaker_dist.planning.budget import Budget
from sagemaker_dist.planning.local_job import PROGRAM, SUBMIT_DIRECTORY
from sagemaker_dist.planning.request.inputs import input_channels
from sagemaker_dist.planning.request.training_options import TrainingOptions

_CODE: Final = "code"  # channel by which jobs without network access get their code
_CODE_PLACE: Final = f"/opt/ml/input/data/{_CODE}"
_CHECKPOINTS: Final = "SM_CHECKPOINT_DIR"


@dataclass(frozen=True, slots=True, kw_only=True)
class Resolved:
    """Values of a request that are derived from the options and the user's AWS account.

    Attributes:
        name: Name of the job.
        image: URI of the image.
        role: ARN of the IAM role.
        region: Region of the job.
        output: URI of the directory for the model.
        code: URI of the code's tarball in S3, a directory of this machine, or None without code.
        script: Name of the script in the code, or None without code.
        distribution: Parsed `distribution=`.
        parameters: Hyperparameters for the sagemaker-dist launcher, not yet encoded as JSON.
        metrics: Metric definitions, including those of the runtime's metrics line; None if there
            are no definitions.
        budget: Most that the job may cost; None without a limit.
    """

    name: str
    image: str
    role: str
    region: str
    output: str
    code: str | None
    script: str | None
    distribution: Distribution
    parameters: Mapping[str, Any]
    metrics: Sequence[Mapping[str, str]] | None
    budget: Budget | None = None


def training_request(options: TrainingOptions, resolved: Resolved) -> dict[str, Any]:
    """Return the whole CreateTrainingJob request, as a dict of its fields by name."""
    return {
        "TrainingJobName": resolved.name,
        "RoleArn": resolved.role,
        "AlgorithmSpecification": _algorithm(options, resolved),
        "HyperParameters": _hyperparameters(options, resolved),
        "OutputDataConfig": _given(
            S3OutputPath=resolved.output,
            KmsKeyId=options.output_kms_key,
            CompressionType="NONE" if options.disable_output_compression else None,
        ),
        "ResourceConfig": _resources(options),
        "StoppingCondition": _given(
            MaxRuntimeInSeconds=_max_run(options, resolved.budget),
            MaxWaitTimeInSeconds=options.max_wait,
        ),
        "ProfilerConfig": {"DisableProfiler": True},
        **_given(
            InputDataConfig=_channels(options, resolved) or None,
            Environment=_environment(options, resolved) or None,
            VpcConfig=_network(options),
            CheckpointConfig=_checkpoints(options),
            RetryStrategy=_retries(options),
            Tags=_tags(options.tags),
            EnableManagedSpotTraining=options.use_spot_instances or None,
            EnableNetworkIsolation=options.enable_network_isolation or None,
            EnableInterContainerTrafficEncryption=options.encrypt_inter_container_traffic or None,
        ),
    }


def _algorithm(options: TrainingOptions, resolved: Resolved) -> dict[str, Any]:
    return _given(
        TrainingImage=resolved.image,
        TrainingInputMode=options.input_mode,
        MetricDefinitions=[dict(each) for each in resolved.metrics] if resolved.metrics else None,
        EnableSageMakerMetricsTimeSeries=resolved.distribution.is_launched or None,
    )


def _hyperparameters(options: TrainingOptions, resolved: Resolved) -> dict[str, str]:
    """Return all hyperparameters of the request, by name.

    Values are encoded as JSON if the job runs a script, and with str() if it runs the image's own
    program.
    """
    given = dict(options.hyperparameters)
    if resolved.script is None:
        launch = {name: json.dumps(value) for name, value in resolved.parameters.items()}
        return {str(name): str(value) for name, value in given.items()} | launch
    own = _given(
        **{
            SUBMIT_DIRECTORY: _code_place(options, resolved),
            PROGRAM: resolved.script,
            "sagemaker_container_log_level": options.container_log_level,
            "sagemaker_job_name": resolved.name,
            "sagemaker_region": resolved.region,
        }
    )
    every = {**given, **own, **resolved.parameters}
    return {str(name): json.dumps(value) for name, value in every.items()}


def _code_place(options: TrainingOptions, resolved: Resolved) -> str | None:
    if resolved.code is None or not options.enable_network_isolation:
        return resolved.code
    return f"{_CODE_PLACE}/{resolved.code.rpartition('/')[2]}"


def _channels(options: TrainingOptions, resolved: Resolved) -> list[dict[str, Any]]:
    channels = input_channels(options.inputs)
    is_s3 = resolved.code is not None and resolved.code.startswith("s3://")
    if options.enable_network_isolation and is_s3:
        channels += input_channels({_CODE: resolved.code})
    return channels


def _resources(options: TrainingOptions) -> dict[str, Any]:
    groups = options.instance_groups
    hosts: dict[str, Any] = {
        "InstanceType": options.instance_type,
        "InstanceCount": options.instance_count or 1,
    }
    if groups is not None:
        hosts = {"InstanceGroups": [each.part() for each in groups]}
    return hosts | _given(
        VolumeSizeInGB=options.volume_size,
        VolumeKmsKeyId=options.volume_kms_key,
        KeepAlivePeriodInSeconds=options.keep_alive_period_in_seconds,
        TrainingPlanArn=options.training_plan,
    )


def _environment(options: TrainingOptions, resolved: Resolved) -> dict[str, str]:
    path = options.checkpoint_local_path  # SageMaker does not report it to the job
    known = {_CHECKPOINTS: path} if path and resolved.distribution.is_launched else {}
    priced = resolved.budget.environment if resolved.budget else {}
    return {**known, **options.environment, **priced}


def _max_run(options: TrainingOptions, budget: Budget | None) -> int:
    return options.max_run if budget is None else budget.limit(options.max_run)


def _network(options: TrainingOptions) -> dict[str, list[str]] | None:
    if not options.subnets:
        return None
    return {
        "Subnets": list(options.subnets),
        "SecurityGroupIds": list(options.security_group_ids or ()),
    }


def _checkpoints(options: TrainingOptions) -> dict[str, str] | None:
    if not options.checkpoint_s3_uri:
        return None
    return _given(S3Uri=options.checkpoint_s3_uri, LocalPath=options.checkpoint_local_path)


def _retries(options: TrainingOptions) -> dict[str, int] | None:
    attempts = options.max_retry_attempts
    return None if attempts is None else {"MaximumRetryAttempts": attempts}


def _tags(tags: Any) -> list[dict[str, str]] | None:
    if not tags:
        return None
    if isinstance(tags, Mapping):
        return [{"Key": name, "Value": value} for name, value in tags.items()]
    return [dict(each) for each in tags]


def _given(**parts: Any) -> dict[str, Any]:
    return {name: part for name, part in parts.items() if part is not None}
