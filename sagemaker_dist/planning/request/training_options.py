# SPDX-License-Identifier: Apache-2.0
"""Options of a training job, with the names of SageMaker's estimators."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from os import PathLike
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class InstanceGroup:
    """Hosts of one instance type in a job that has several."""

    instance_group_name: str
    instance_type: str
    instance_count: int

    def part(self) -> dict[str, Any]:
        """Return CreateTrainingJob's form."""
        return {
            "InstanceGroupName": self.instance_group_name,
            "InstanceType": self.instance_type,
            "InstanceCount": self.instance_count,
        }


@dataclass(frozen=True, kw_only=True)
class TrainingOptions:
    """Options of one training job; names and defaults are those of SageMaker's estimators (SDK
    2.257.7).

    Attributes:
        entry_point: The script, below `source_dir` if that is given. None runs the image's own
            program.
        source_dir: Directory of the script, which is sent as a whole; or a tarball in S3.
        dependencies: Files and directories that the job gets next to the script.
        image_uri: Default None: this version's image of `framework`, in the ECR of the
            session's account and region, or on this machine.
        framework: "torch" or "tensorflow", if no image is named.
        role: ARN or name of the job's IAM role; local jobs need none.
        instance_type: Type such as "ml.p4d.24xlarge"; "local_process", "local", "local_gpu" for
            this machine.
        instance_count: Number of hosts. Default 1.
        instance_groups: Hosts of several types, instead of the two options above.
        distribution: Distribution as for the estimators, such as `DataParallel()`.
        hyperparameters: Arguments of the script.
        environment: Environment variables of the job.
        inputs: A URI (`"s3://…"`, `"fsx://fs-…/mount"`, `"efs://fs-…/"`, a Path or file:// on this
            machine), an `S3Input` or `FileSystemInput`, or a dict of these by channel name. A
            single one is the channel "training".
        input_mode: "File", "FastFile" or "Pipe", for channels without a mode of their own.
        output_path: URI for the model. Default: the account's SageMaker bucket of the region, or
            the job's folder on this machine.
        code_location: S3 URI for uploading the code. Default: `output_path`.
        base_job_name: Beginning of generated job names. Default: the image's framework.
        job_name: The whole job name, 1 to 63 characters.
        volume_size: Size of each host's EBS volume in GiB. Default 30.
        max_run: Longest run in seconds. Default one day.
        max_wait: Longest wait for Spot instances and run together, in seconds.
        max_retry_attempts: Restarts after an error of the service.
        keep_alive_period_in_seconds: Seconds that hosts stay for the next job (warm pool).
        container_log_level: Log level as a number of Python's logging. Default 20.
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
