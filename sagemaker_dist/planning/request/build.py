# SPDX-License-Identifier: Apache-2.0
"""The CreateTrainingJob request, member by member as SageMaker's SDK v2 sends it.

What is left out of the options is left out of the request, so that the service's
own defaults hold. Profiler and debugger are off: our image holds neither.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from sagemaker_dist.contract import Distribution
from sagemaker_dist.planning.local_job import PROGRAM, SUBMIT_DIRECTORY
from sagemaker_dist.planning.request.inputs import input_channels
from sagemaker_dist.planning.request.options import TrainingOptions

_CODE: Final = "code"  # the channel that brings code where the job has no network
_CODE_PLACE: Final = f"/opt/ml/input/data/{_CODE}"
_CHECKPOINTS: Final = "SM_CHECKPOINT_DIR"


@dataclass(frozen=True, slots=True, kw_only=True)
class Settled:
    """What the options leave open, settled before the request is built.

    Attributes:
        name: Of the job.
        image: Its URI.
        role: Its ARN.
        region: Where the job runs.
        output: Where the model goes.
        code: The tarball's place in S3, a directory of this machine, or None.
        script: What of the code is run.
        asked: The distribution taken apart.
        parameters: Hyperparameters that ask our launcher, before they are encoded.
        metrics: Metric definitions, ours included.
    """

    name: str
    image: str
    role: str
    region: str
    output: str
    code: str | None
    script: str | None
    asked: Distribution
    parameters: Mapping[str, Any]
    metrics: Sequence[Mapping[str, str]] | None


def training_request(options: TrainingOptions, settled: Settled) -> dict[str, Any]:
    """The whole request; asks nobody and touches nothing."""
    return {
        "TrainingJobName": settled.name,
        "RoleArn": settled.role,
        "AlgorithmSpecification": _algorithm(options, settled),
        "HyperParameters": _hyperparameters(options, settled),
        "OutputDataConfig": _given(
            S3OutputPath=settled.output,
            KmsKeyId=options.output_kms_key,
            CompressionType="NONE" if options.disable_output_compression else None,
        ),
        "ResourceConfig": _resources(options),
        "StoppingCondition": _given(
            MaxRuntimeInSeconds=options.max_run, MaxWaitTimeInSeconds=options.max_wait
        ),
        "ProfilerConfig": {"DisableProfiler": True},
        **_given(
            InputDataConfig=_channels(options, settled) or None,
            Environment=_environment(options, settled) or None,
            VpcConfig=_network(options),
            CheckpointConfig=_checkpoints(options),
            RetryStrategy=_retries(options),
            Tags=_tags(options.tags),
            EnableManagedSpotTraining=options.use_spot_instances or None,
            EnableNetworkIsolation=options.enable_network_isolation or None,
            EnableInterContainerTrafficEncryption=options.encrypt_inter_container_traffic or None,
        ),
    }


def _algorithm(options: TrainingOptions, settled: Settled) -> dict[str, Any]:
    return _given(
        TrainingImage=settled.image,
        TrainingInputMode=options.input_mode,
        MetricDefinitions=[dict(each) for each in settled.metrics] if settled.metrics else None,
        EnableSageMakerMetricsTimeSeries=settled.asked.is_launched or None,
    )


def _hyperparameters(options: TrainingOptions, settled: Settled) -> dict[str, str]:
    """As JSON where a script gets them; by str() where the image's own program does."""
    given = dict(options.hyperparameters)
    if settled.script is None:
        launch = {name: json.dumps(value) for name, value in settled.parameters.items()}
        return {str(name): str(value) for name, value in given.items()} | launch
    own = _given(
        **{
            SUBMIT_DIRECTORY: _code_place(options, settled),
            PROGRAM: settled.script,
            "sagemaker_container_log_level": options.container_log_level,
            "sagemaker_job_name": settled.name,
            "sagemaker_region": settled.region,
        }
    )
    every = {**given, **own, **settled.parameters}
    return {str(name): json.dumps(value) for name, value in every.items()}


def _code_place(options: TrainingOptions, settled: Settled) -> str | None:
    if settled.code is None or not options.enable_network_isolation:
        return settled.code
    return f"{_CODE_PLACE}/{settled.code.rpartition('/')[2]}"


def _channels(options: TrainingOptions, settled: Settled) -> list[dict[str, Any]]:
    channels = input_channels(options.inputs)
    is_s3 = settled.code is not None and settled.code.startswith("s3://")
    if options.enable_network_isolation and is_s3:
        channels += input_channels({_CODE: settled.code})
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


def _environment(options: TrainingOptions, settled: Settled) -> dict[str, str]:
    path = options.checkpoint_local_path  # SageMaker tells its place to nobody in the job
    known = {_CHECKPOINTS: path} if path and settled.asked.is_launched else {}
    return {**known, **options.environment}


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
