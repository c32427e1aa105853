# SPDX-License-Identifier: Apache-2.0
"""Options of a training job, which have the names of the arguments of SageMaker's estimators."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from os import PathLike
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class InstanceGroup:
    """Group of hosts of one instance type, in a job with several instance types.

    Attributes:
        instance_group_name: Name of the group.
        instance_type: Type such as "ml.p4d.24xlarge".
        instance_count: Number of hosts in the group.
    """

    instance_group_name: str
    instance_type: str
    instance_count: int

    def part(self) -> dict[str, Any]:
        """Return the element of CreateTrainingJob's InstanceGroups."""
        return {
            "InstanceGroupName": self.instance_group_name,
            "InstanceType": self.instance_type,
            "InstanceCount": self.instance_count,
        }


@dataclass(frozen=True, kw_only=True)
class TrainingOptions:
    """Options of one training job.

    Names and defaults are those of SageMaker's estimators (SDK 2.257.7).

    Attributes:
        entry_point: Path of the script. If `source_dir` is given, the path is relative to this
            directory. Default None: the image runs its own program.
        source_dir: Directory with the script, whose files are all sent; or URI of a tarball in S3.
            Default None: only the script is sent.
        dependencies: Files and directories that the job gets next to the script.
        image_uri: URI of the image. Default None: the image that `sagemaker-dist image build` makes
            for `framework` with this version of the package. The image must be in the ECR of the
            session's account and region; for a local job, it must be on this machine.
        framework: "torch" or "tensorflow", which selects the image if `image_uri` is left out.
            Default "torch".
        role: ARN or name of the job's IAM role; local jobs need no role.
        instance_type: Type such as "ml.p4d.24xlarge", or for a job on this machine
            "local_process", "local" or "local_gpu".
        instance_count: Number of hosts. Default 1.
        instance_groups: Groups of hosts with different instance types, in place of instance_type
            and instance_count.
        distribution: Typed option such as `DataParallel()`, or a dict, as for the estimators.
            Default None: one process per host.
        hyperparameters: Arguments of the script, by name.
        environment: Environment variables of the job, by name.
        inputs: URI of the data (`"s3://…"`, `"fsx://fs-…/mount"`, `"efs://fs-…/"`, or for a local
            job a Path or a file:// URI), an `S3Input` or `FileSystemInput`, or a dict of these by
            channel name. A single value becomes the channel "training".
        input_mode: "File", "FastFile" or "Pipe", for channels without a mode of their own. Default
            "File".
        output_path: URI of the directory for the model. Default: the account's SageMaker bucket of
            the region, or the job's folder on this machine.
        output_kms_key: KMS key that encrypts the model and the uploaded code. Default: AWS's key
            for S3.
        code_location: S3 URI of the directory to which the code is uploaded. Default:
            `output_path`.
        disable_output_compression: True to store the model as files, False to store model.tar.gz.
            Default False.
        base_job_name: Beginning of generated job names. Default: the framework of the image.
        job_name: Name of the job, 1 to 63 characters. Default: generated.
        volume_size: Size of each host's EBS volume in GiB. Default 30.
        volume_kms_key: KMS key that encrypts the EBS volumes of the hosts.
        max_run: Longest duration of the job, in seconds. Default one day.
        max_cost: Most that the job may cost, in US dollars. The job is stopped by SIGTERM before it
            costs more: max_run becomes the time that this pays for, if that is shorter. Default:
            no limit.
        price_per_hour: Price of one host in US dollars per hour, for max_cost. Default: the known
            price of the instance type in the job's region; a local instance type has none.
        max_wait: Longest time for waiting for spot instances and running together, in seconds.
        use_spot_instances: True to train on spot instances. Default False.
        max_retry_attempts: Largest number of restarts after errors of the service.
        checkpoint_s3_uri: URI of the directory in which checkpoints are saved.
        checkpoint_local_path: Directory of the checkpoints on each host. Default:
            /opt/ml/checkpoints, which is SageMaker's default.
        subnets: Ids of the VPC's subnets for the hosts.
        security_group_ids: Ids of the VPC's security groups for the hosts.
        encrypt_inter_container_traffic: True to encrypt the traffic between hosts. Default False.
        enable_network_isolation: True to prevent network access of the job. Default False.
        keep_alive_period_in_seconds: Time, in seconds, for which the hosts stay available for the
            next job (a warm pool).
        training_plan: ARN of the training plan whose reserved capacity the job uses.
        tags: Tags of the job, as a dict or as a list of {"Key": ..., "Value": ...}.
        metric_definitions: List of metric definitions, such as {"Name": ..., "Regex": ...}. The
            definitions for the runtime's metrics line are added.
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
    max_cost: float | None = None
    price_per_hour: float | None = None
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
