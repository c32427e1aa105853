# SPDX-License-Identifier: Apache-2.0
"""Facts about a job for the checks, gathered before so that the checks stay pure.

None means left out, or a pipeline variable; checks skip it.
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
    """Place of the entry point.

    Attributes:
        entry_point: Path that the user passed.
        directory: The source_dir that the user passed, or None.
        exists: Whether the entry point exists.
        directory_exists: Whether the source_dir exists.
        in_s3: Whether the source_dir is a tarball in S3, which is not inspected.
        is_launched: Whether the sagemaker-dist launcher starts it, which sees only the source_dir.
    """

    entry_point: str
    directory: str | None = None
    exists: bool = True
    directory_exists: bool = True
    in_s3: bool = False
    is_launched: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Obstacle:
    """Nearest existing part of a path below which nothing can be written.

    Attributes:
        path: Path of that part.
        is_directory: Whether it is a directory without write permission.
    """

    path: str
    is_directory: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanFile:
    """The saved plan that `ModelParallel(plan=...)` names, on this machine.

    Attributes:
        path: Path that the user passed.
        where: Where it was looked for, in words.
        problem: Why it is not a plan; "" if it is one.
        numbers: Its degrees and batch sizes by name, all above 0.
    """

    path: str
    where: str
    problem: str = ""
    numbers: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """Facts about a job for the checks.

    Attributes:
        kind: Class of SageMaker's SDK that the estimator replaces, such as "PyTorch".
        uses_launcher: Whether the sagemaker-dist launcher runs the job, as far as known.
        names_image: Whether image_uri is given, possibly as a pipeline variable.
        known_to_boto3: Whether boto3's service model has the instance type.
        keeps_checkpoints: Whether checkpoint_s3_uri is given, possibly as a pipeline variable.
        framework_version: Version that the user passed, or None if an image is named.
        image_version: Version of the framework in the sagemaker-dist image.
        own_session: Whether the session is a sagemaker-dist LocalSession, or was left out.
        local_session: Whether the session is one of SageMaker's local mode, or was left out.
        obstacles: Obstacles to writing, by the argument that names the place.
        environment: Environment variables; "" for pipeline variables.
        other: Further arguments that checks read, by name.
        plan: Saved plan of a split model, or None if it cannot be looked for.
        unknown: Names of arguments that do not exist in SageMaker's SDK.
        valid: Names of all arguments that exist.
        terms: Further arguments that SageMaker reads, or None if not gathered.
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
        """Return type and number of the hosts that train, in the job or in its training group."""
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
        """Return whether the sagemaker-dist runner runs the job here; SageMaker's LocalSession has
        a runner of its own.
        """
        is_container = self.instance_type in LOCAL and self.own_session
        return bool(self.instance_type == LOCAL_PROCESS or is_container)

    @property
    def on_sagemaker(self) -> bool:
        """Return whether SageMaker runs the job; the instance type may be a pipeline variable."""
        return self.instance_type not in {LOCAL_PROCESS, *LOCAL}
