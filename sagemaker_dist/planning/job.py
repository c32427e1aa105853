# SPDX-License-Identifier: Apache-2.0
"""What the checks know of a job: gathered facts, so that the checks stay pure.

A value of None is one that is left out or that only a pipeline will know; no
check touches it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from sagemaker_dist.catalog import LOCAL, LOCAL_PROCESS
from sagemaker_dist.contract import Distribution
from sagemaker_dist.planning.channels import Channel
from sagemaker_dist.planning.service.terms import Terms, is_groups


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """Where the entry point is looked for.

    Attributes:
        entry_point: As given.
        directory: The source_dir, as given.
        exists: Whether the entry point is there.
        directory_exists: Whether the source_dir is there.
        in_s3: The source_dir is a tarball in S3, which nobody looks into.
        is_launched: Our launcher starts it, which sees the source_dir alone.
    """

    entry_point: str
    directory: str | None = None
    exists: bool = True
    directory_exists: bool = True
    in_s3: bool = False
    is_launched: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Obstacle:
    """The nearest existing part of a place, where nothing can be written below it.

    Attributes:
        path: That part.
        is_directory: Whether it is a directory that may not be written to.
    """

    path: str
    is_directory: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanFile:
    """The saved plan that `ModelParallel(plan=...)` names, as it lies on this machine.

    Attributes:
        path: As given.
        where: Where it was looked for, in words.
        problem: Why it is no plan; "" where it is one.
        numbers: What it says of ranks and batches, by name; not of a kind that it must not be.
    """

    path: str
    where: str
    problem: str = ""
    numbers: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """What an estimator was asked to do, with the facts that the checks need.

    Attributes:
        kind: The class of SageMaker's SDK whose drop-in asks, such as "PyTorch".
        image_is_ours: Our launcher runs the job, as far as anybody can tell.
        names_image: An image_uri is given, be it by a pipeline.
        known_to_boto3: boto3's service model knows the instance type.
        keeps_checkpoints: A checkpoint_s3_uri is named, be it by a pipeline.
        framework_version: As given, where no image is named that it could not be about.
        image_version: The framework's version in our own image.
        own_session: The session is one of ours, or none was given.
        local_session: The session is one of SageMaker's local mode, or none was given.
        obstacles: What is in the way of a place, by the argument that names the place.
        environment: By name; "" where only a pipeline will know the value.
        other: Arguments that change what kind of job it is, by name.
        plan: The plan of a model that is split, or None where nobody could look for one.
        unknown: Names of arguments that no class of SageMaker's SDK takes.
        valid: The names that they take.
        terms: What else SageMaker reads, or None where nobody gathered it.
    """

    kind: str = "PyTorch"
    image_is_ours: bool = True
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
        """Type and number of the hosts that train: of the whole job, or of the group that does."""
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
        """Whether our own runner runs the job here; SageMaker's LocalSession brings another."""
        is_container = self.instance_type in LOCAL and self.own_session
        return bool(self.instance_type == LOCAL_PROCESS or is_container)

    @property
    def on_sagemaker(self) -> bool:
        """Whether SageMaker runs the job, on instances that may be known to a pipeline alone."""
        return self.instance_type not in {LOCAL_PROCESS, *LOCAL}
