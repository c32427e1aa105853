# SPDX-License-Identifier: Apache-2.0
"""Everything that can be said of a training job, in the words of SageMaker's estimators."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from os import PathLike
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class InstanceGroup:
    """Hosts of one kind in a job that has several."""

    instance_group_name: str
    instance_type: str
    instance_count: int

    def part(self) -> dict[str, Any]:
        """As CreateTrainingJob takes it."""
        return {
            "InstanceGroupName": self.instance_group_name,
            "InstanceType": self.instance_type,
            "InstanceCount": self.instance_count,
        }


@dataclass(frozen=True, kw_only=True)
class TrainingOptions:
    """One training job. Names and defaults are those of SageMaker's estimators (SDK 2.257.7).

    Attributes:
        entry_point: The script, below `source_dir` where that is given. None runs the
            image's own program.
        source_dir: Its directory, which the job gets as a whole; or a tarball in S3.
        dependencies: Files and directories that lie beside the script in the job.
        image_uri: Default None: this version's image of `framework`, in the ECR of the
            session's account and region, or on this machine.
        framework: "torch" or "tensorflow", where no image is named.
        role: The ARN or name of the job's IAM role; jobs of this machine need none.
        instance_type: Such as "ml.p4d.24xlarge"; "local_process", "local", "local_gpu".
        instance_count: Hosts. Default 1.
        instance_groups: Instead of the two: hosts of several kinds.
        distribution: As the estimators take it, such as `DataParallel()`.
        hyperparameters: What the script gets as arguments.
        environment: Variables of the job.
        inputs: A place (`"s3://…"`, `"fsx://fs-…/mount"`, `"efs://fs-…/"`, a Path or
            file:// on this machine), an `S3Input` or `FileSystemInput`, or these by
            the channel's name. A single one is the channel "training".
        input_mode: "File", "FastFile" or "Pipe", of channels that say nothing.
        output_path: Where the model goes. Default: the account's SageMaker bucket of
            the region, or the job's folder on this machine.
        code_location: Where the code is uploaded. Default: `output_path`.
        base_job_name: What begins the job's name. Default: the image's framework.
        job_name: The whole name, 1 to 63 characters.
        volume_size: GiB of each host's disk, where it is EBS.
        max_run: Seconds the job may run. Default one day.
        max_wait: Seconds it may run and wait for Spot instances together.
        max_retry_attempts: Times the job is begun again after an error of the service.
        keep_alive_period_in_seconds: How long hosts stay for the next job (warm pool).
        container_log_level: As Python's logging numbers it.
    """

    entry_point: str | PathLike[str] | None = None
    source_dir: str | PathLike[str] | None = None
    dependencies: Sequence[str | PathLike[str]] = ()
    image_uri: str | None = None
    framework: str = "torch"
    role: str | None = None
    instance_type: str | None = None
    instance_count: int | None = None
    instance_groups: Sequence[InstanceGroup] | None = None
    distribution: Any = None
    hyperparameters: Mapping[str, Any] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)
    inputs: Any = None
    input_mode: str = "File"
    output_path: str | None = None
    output_kms_key: str | None = None
    code_location: str | None = None
    disable_output_compression: bool = False
    base_job_name: str | None = None
    job_name: str | None = None
    volume_size: int = 30
    volume_kms_key: str | None = None
    max_run: int = 24 * 60 * 60
    max_wait: int | None = None
    use_spot_instances: bool = False
    max_retry_attempts: int | None = None
    checkpoint_s3_uri: str | None = None
    checkpoint_local_path: str | None = None
    subnets: Sequence[str] | None = None
    security_group_ids: Sequence[str] | None = None
    encrypt_inter_container_traffic: bool = False
    enable_network_isolation: bool = False
    keep_alive_period_in_seconds: int | None = None
    training_plan: str | None = None
    tags: Mapping[str, str] | Sequence[Mapping[str, str]] | None = None
    metric_definitions: Sequence[Mapping[str, str]] | None = None
    container_log_level: int = 20
