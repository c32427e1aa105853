# SPDX-License-Identifier: Apache-2.0
"""Every fault that can be found before a job starts.

Facts come in gathered, faults go out as errors that are not raised yet: the
caller raises all of them at once. A value of None is one that is left out or
that only a pipeline will know; no check touches it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Final

from sagemaker_dist.catalog import LOCAL, LOCAL_PROCESS, training_instances
from sagemaker_dist.contract import Distribution
from sagemaker_dist.errors import OptionError, closest
from sagemaker_dist.planning.channels import Channel, channel_faults
from sagemaker_dist.planning.locations import FILE, scheme_of

JOB_NAME: Final = re.compile(r"[a-zA-Z0-9](-*[a-zA-Z0-9]){0,62}")  # CreateTrainingJob
_ML_ROOT: Final = "/opt/ml/"


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """Where the entry point is looked for.

    Attributes:
        entry_point: As given.
        directory: The source_dir, as given.
        exists: Whether the entry point is there.
        directory_exists: Whether the source_dir is there.
    """

    entry_point: str
    directory: str | None = None
    exists: bool = True
    directory_exists: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """What an estimator was asked to do, with the facts that the checks need.

    Attributes:
        known_to_boto3: boto3's service model knows the instance type.
        has_image: An image is named, be it by a pipeline.
        own_session: The session is one of ours, or none was given.
        other: Arguments that change what kind of job it is, by name.
        unknown: Names of arguments that no class of SageMaker's SDK takes.
        valid: The names that they take.
    """

    distribution: Distribution = field(default_factory=Distribution)
    instance_type: Any = None
    instance_count: Any = None
    known_to_boto3: bool = False
    has_image: bool = True
    own_session: bool = True
    output_path: Any = None
    checkpoint_s3_uri: Any = None
    checkpoint_local_path: Any = None
    other: dict[str, Any] = field(default_factory=dict)
    unknown: tuple[str, ...] = ()
    valid: frozenset[str] = frozenset()
    job_name: Any = None
    job_exists: bool = False
    source: Source | None = None
    channels: tuple[Channel, ...] = ()

    @property
    def on_this_machine(self) -> bool:
        """Whether the job runs as plain processes here."""
        return bool(self.instance_type == LOCAL_PROCESS)


def construction_faults(job: Job) -> Iterator[OptionError]:
    """What is wrong with the arguments of an estimator, whatever it is fit to."""
    for name in job.unknown:
        yield OptionError(
            f"the estimator was given {name}=",
            "no such argument exists; SageMaker's SDK would drop it silently",
            closest(name, job.valid),
        )
    yield from _instance_faults(job)
    if job.distribution.ours is not None:
        yield from _distribution_faults(job)
    if job.on_this_machine:
        yield from _local_faults(job)


def fit_faults(job: Job) -> Iterator[OptionError]:
    """What would keep this job from starting or from reading its data."""
    yield from source_faults(job.source)
    count = job.instance_count
    if count is not None and (type(count) is not int or count < 1):
        yield OptionError(
            f"instance_count is {count!r}",
            "a job has at least one host",
            "Pass an integer of at least 1",
        )
    if job.job_name is not None and not JOB_NAME.fullmatch(str(job.job_name)):
        yield OptionError(
            f"job_name is {job.job_name!r}",
            "a name is 1 to 63 letters, digits and inner hyphens",
            "Pass such a name, or leave job_name out",
        )
    elif job.job_exists:
        yield OptionError(
            f"job_name is {job.job_name!r}",
            "a job of this name exists",
            "Pass another name, or leave job_name out",
        )
    if job.instance_type not in LOCAL:  # SageMaker's local mode reads and checks in its own way
        yield from channel_faults(job.channels, on_this_machine=job.on_this_machine)


def source_faults(source: Source | None) -> Iterator[OptionError]:
    """An entry point or source_dir that is not there."""
    if source is None:
        return
    if not source.directory_exists:
        yield OptionError(
            f"source_dir is {source.directory!r}",
            "there is no such directory",
            "Correct the path",
        )
    elif not source.exists:
        where = f"source_dir {source.directory!r}" if source.directory else "the current directory"
        yield OptionError(
            f"entry_point is {source.entry_point!r}",
            f"there is no such file in {where}",
            "Correct the path",
        )


def gpu_warning(job: Job) -> str | None:
    """What to know before ranks run on GPUs, or None."""
    instance = training_instances().get(str(job.instance_type))
    if job.distribution.ours is None or instance is None or not instance.has_gpu:
        return None
    return (
        f"{instance.name} has GPUs, and smdist does not carry CUDA tensors yet."
        ' Use init_process_group("cpu:smdist,cuda:nccl") in the script:'
        " CUDA tensors then travel with NCCL, CPU tensors with smdist."
    )


def _instance_faults(job: Job) -> Iterator[OptionError]:
    name = job.instance_type
    valid = {*training_instances(), *LOCAL, LOCAL_PROCESS}
    if name is None or name in valid or job.known_to_boto3:
        return
    mend = closest(str(name), valid)
    if len(mend) > 200:  # every type there is would be no help
        mend = "Pass a type such as 'ml.p4d.24xlarge', or 'local_process'"
    yield OptionError(
        f"instance_type is {name!r}", "SageMaker training has no such instance type", mend
    )


def _distribution_faults(job: Job) -> Iterator[OptionError]:
    for name in sorted(set(job.distribution.rest) - {"instance_groups"}):
        yield OptionError(
            f"distribution asks for sagemaker_dist and for {name!r}",
            "a job has one launcher",
            f"Leave {name!r} out",
        )
    for name in ("instance_groups", "training_recipe", "compiler_config"):
        if job.other.get(name) is not None:
            yield OptionError(
                f"{name} is set",
                "the distribution of sagemaker_dist does not run with it",
                f"Leave {name} out, or leave distribution out",
            )
    if job.instance_type in LOCAL:
        yield OptionError(
            f"instance_type is {job.instance_type!r}",
            "the distribution of sagemaker_dist does not run in Docker on this machine yet",
            "Pass instance_type='local_process'",
        )
    elif not job.on_this_machine and not job.has_image:
        yield OptionError(
            "image_uri is left out",
            "the images of AWS do not hold the runtime of sagemaker_dist",
            "Build an image with it (pip install 'sagemaker-dist-runtime[torch]'),"
            " push it to Amazon ECR and pass image_uri=...",
        )


def _local_faults(job: Job) -> Iterator[OptionError]:
    if not job.own_session:
        yield OptionError(
            "sagemaker_session is not a ProcessSession",
            "local_process does not talk to SageMaker",
            "Leave sagemaker_session out",
        )
    if job.distribution.ours is None:
        for name in sorted(job.distribution.rest):
            yield OptionError(
                f"distribution has the key {name!r}",
                "local_process starts the distribution of sagemaker_dist, or one process per host",
                "Pass distribution=DataParallel(), or leave distribution out",
            )
    for name in ("instance_groups", "training_recipe", "use_spot_instances"):
        if job.other.get(name) and not (name != "use_spot_instances" and job.distribution.ours):
            yield OptionError(
                f"{name} is set", "local_process has no such thing", f"Leave {name} out"
            )
    yield from _place_faults(job)


def _place_faults(job: Job) -> Iterator[OptionError]:
    for name in ("output_path", "checkpoint_s3_uri"):
        uri = getattr(job, name)
        if uri and not str(uri).startswith(FILE + "/"):
            known = {"s3": "local_process does not upload to S3", "": "it is a bare path"}
            why = known.get(scheme_of(str(uri)), "only absolute file:// places are written")
            yield OptionError(
                f"{name} is {uri!r}",
                why,
                "Pass Path(...).absolute().as_uri(), or leave it out",
            )
    path = job.checkpoint_local_path
    if path is not None and not (str(path) + "/").startswith(_ML_ROOT):
        yield OptionError(
            f"checkpoint_local_path is {path!r}",
            "local_process maps only what lies below /opt/ml",
            "Leave it out: checkpoints lie in SM_CHECKPOINT_DIR",
        )
