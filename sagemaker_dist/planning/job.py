# SPDX-License-Identifier: Apache-2.0
"""Facts about a job that the checks need.

The facts are collected first, so that the checks read neither disk nor network. None stands for a
value that is left out or is a pipeline variable; checks skip such values.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from sagemaker_dist.catalog import LOCAL, LOCAL_PROCESS
from sagemaker_dist.contract import Distribution
from sagemaker_dist.planning.channel_checks import Channel
from sagemaker_dist.planning.service.terms import Terms, is_groups


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """Place of the script that a job runs.

    Attributes:
        entry_point: Path of the script that the user passed.
        directory: The source_dir that the user passed, or None.
        exists: True if the script exists.
        directory_exists: True if the source_dir exists.
        in_s3: True if the source_dir is a tarball in S3, which is not inspected.
        is_launched: True if the sagemaker-dist launcher starts the script. Then the script must be
            a .py file, and must be inside the source_dir if that is given.
    """

    entry_point: str
    directory: str | None = None
    exists: bool = True
    directory_exists: bool = True
    in_s3: bool = False
    is_launched: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Obstacle:
    """Existing file or directory that prevents the creation of an output directory.

    Attributes:
        path: Path of the obstacle: the output directory itself or its nearest existing parent.
        is_directory: True for a directory without write permission, False for a file.
    """

    path: str
    is_directory: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanFile:
    """File of the saved plan that `ModelParallel(plan=...)` names, on this machine.

    Attributes:
        path: Path that the user passed.
        where: Place where the file was searched, for messages, such as "in source_dir 'src'".
        problem: Reason why the plan cannot be used, such as "there is no such file". In messages,
            `where` follows this text. "" if the plan can be used.
        kind: Kind of the error about this problem, such as "missing_file"; "" without a problem.
        numbers: The plan's degrees and batch sizes by name, all above 0.
    """

    path: str
    where: str
    problem: str = ""
    kind: str = ""
    numbers: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """Facts about a job that the checks need.

    Attributes:
        kind: Class of SageMaker's SDK that the estimator replaces, such as "PyTorch".
        uses_launcher: True if the sagemaker-dist launcher runs the job, judged by the name of the
            image.
        names_image: True if image_uri is given, possibly as a pipeline variable.
        distribution: Parsed `distribution=`.
        instance_type: Instance type of the job without instance groups.
        instance_count: Number of hosts of the job without instance groups.
        known_to_boto3: True if boto3's service model has the instance type, but the package's
            table of instance types does not.
        keeps_checkpoints: True if checkpoint_s3_uri is given, possibly as a pipeline variable.
        framework_version: Version that the user passed; None if an image is passed.
        image_version: Version of the framework in the sagemaker-dist image.
        own_session: True if sagemaker_session is left out, or is a LocalSession of sagemaker_dist.
        local_session: True if sagemaker_session is left out, or is a LocalSession of sagemaker_dist
            or of SageMaker's SDK.
        output_path: URI of the directory for the model.
        checkpoint_s3_uri: URI of the directory for checkpoints.
        checkpoint_local_path: Directory of the checkpoints on each host.
        obstacles: File or directory that prevents writing to a file:// URI, by the name of the
            argument that has the URI, such as "output_path".
        environment: Environment variables by name; "" for pipeline variables.
        base_job_name: Beginning of a generated job name.
        other: Values of arguments that have no attribute here, by name.
        unknown: Names of passed arguments that the estimator does not have.
        valid: Names of all arguments that the estimator has.
        job_name: Name of the job.
        job_exists: True if a job of this name exists already.
        source: Place of the script; None if the job has no script.
        plan: Saved plan of a split model; None if `distribution` names no plan, or if the
            directory of the script is not on this machine.
        channels: Input channels.
        terms: Arguments for which SageMaker's API has limits; None if they were not collected.
    """

    kind: str = "PyTorch"
    uses_launcher: bool = True
    names_image: bool = False
    distribution: Distribution = field(default_factory=Distribution)
    instance_type: Any = None
    instance_count: Any = None
    known_to_boto3: bool = False
    keeps_checkpoints: bool = True
    framework_version: Any = None
    image_version: str = ""
    own_session: bool = True
    local_session: bool = True
    output_path: Any = None
    checkpoint_s3_uri: Any = None
    checkpoint_local_path: Any = None
    obstacles: Mapping[str, Obstacle] = field(default_factory=dict)
    environment: Any = field(default_factory=dict)
    base_job_name: Any = None
    other: dict[str, Any] = field(default_factory=dict)
    unknown: tuple[str, ...] = ()
    valid: frozenset[str] = frozenset()
    job_name: Any = None
    job_exists: bool = False
    source: Source | None = None
    plan: PlanFile | None = None
    channels: tuple[Channel, ...] = ()
    terms: Terms | None = None

    @property
    def training_hosts(self) -> tuple[Any, Any]:
        """Return the instance type and the number of the hosts that start ranks.

        Both may be None, if unknown. With instance groups, these are the hosts of the group that
        the distribution names.
        """
        groups = self.terms.instance_groups if self.terms else None
        if groups is None:
            return self.instance_type, self.instance_count
        if not is_groups(groups):
            return None, None
        names = self.distribution.group_names
        chosen = [each for each in groups if each["InstanceGroupName"] in names or not names]
        if len(chosen) != 1:
            return None, None
        return chosen[0]["InstanceType"], chosen[0]["InstanceCount"]

    @property
    def on_this_machine(self) -> bool:
        """Return whether sagemaker-dist runs the job on this machine.

        The result is False for jobs that SageMaker's own local mode runs on this machine.
        """
        is_container = self.instance_type in LOCAL and self.own_session
        return bool(self.instance_type == LOCAL_PROCESS or is_container)

    @property
    def on_sagemaker(self) -> bool:
        """Return whether the job runs on SageMaker; True if the instance type is not known yet."""
        return self.instance_type not in {LOCAL_PROCESS, *LOCAL}
