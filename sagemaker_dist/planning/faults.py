# SPDX-License-Identifier: Apache-2.0
"""Every fault that can be found before a job starts.

Facts come in gathered, faults go out as errors that are not raised yet: the
caller raises all of them at once.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from operator import index
from pathlib import PurePosixPath
from posixpath import normpath
from typing import Any, Final

from sagemaker_dist.catalog import LOCAL, LOCAL_PROCESS, training_instances
from sagemaker_dist.contract import host_faults
from sagemaker_dist.errors import OptionError, closest
from sagemaker_dist.planning.capabilities import capability_faults
from sagemaker_dist.planning.channels import channel_faults, name_faults
from sagemaker_dist.planning.job import Job, Source
from sagemaker_dist.planning.local_faults import local_faults
from sagemaker_dist.planning.service.channels import input_faults
from sagemaker_dist.planning.service.faults import service_faults
from sagemaker_dist.planning.service.groups import hostless_faults
from sagemaker_dist.planning.service.options import environment_faults, hyperparameter_faults
from sagemaker_dist.planning.service.places import place_faults
from sagemaker_dist.planning.service.terms import Terms
from sagemaker_dist.planning.splitting import model_faults
from sagemaker_dist.planning.strategies import our_image_faults
from sagemaker_dist.planning.their_image import their_image_faults, their_image_warnings
from sagemaker_dist.planning.travel import travel_warning

# Repositories of AWS's Deep Learning Containers for training (its list of images, 2026-11-21).
_DEEP_LEARNING_CONTAINER: Final = re.compile(
    r"(huggingface-)?(pytorch|tensorflow|mxnet)-(training|trcomp)(-\w+)?"
    r"|smdistributed-modelparallel"
)
_BASE_NAME: Final = re.compile(r"[a-zA-Z0-9][a-zA-Z0-9-]*")  # the SDK cuts and adds the time
JOB_NAME: Final = re.compile(r"[a-zA-Z0-9](-*[a-zA-Z0-9]){0,62}")  # CreateTrainingJob


def construction_faults(job: Job) -> Iterator[OptionError]:
    """What is wrong with the arguments of an estimator, whatever it is fit to."""
    for name in job.unknown:
        yield OptionError(
            f"the estimator was given {name}=",
            "no such argument exists; SageMaker's SDK would drop it silently",
            closest(name, job.valid),
        )
    yield from _instance_faults(job)
    yield from _count_faults(job)
    if job.checkpoint_local_path and not job.keeps_checkpoints:
        yield OptionError(
            f"checkpoint_local_path is {job.checkpoint_local_path!r}",
            "without checkpoint_s3_uri nothing that is written there is kept",
            "Pass checkpoint_s3_uri as well, or leave checkpoint_local_path out",
        )
    if job.base_job_name is not None and not _BASE_NAME.fullmatch(str(job.base_job_name)):
        yield OptionError(
            f"base_job_name is {job.base_job_name!r}",
            "a name is letters, digits and inner hyphens",
            "Pass such a name, or leave base_job_name out",
        )
    if job.instance_type not in LOCAL or job.on_this_machine:
        yield from _environment_faults(job.environment)
    if job.image_is_ours:
        yield from our_image_faults(job)
    elif not job.on_this_machine:
        yield from their_image_faults(job)
    if job.distribution.is_launched:
        yield from _launch_faults(job)
        yield from capability_faults(job)
    if job.on_this_machine:
        yield from local_faults(job)
    yield from _local_hyperparameter_faults(job)
    if job.terms is not None and job.on_sagemaker:
        yield from _service_faults(job, job.terms)


def construction_warnings(job: Job) -> Iterator[str]:
    """What is not wrong but not to be expected either."""
    yield from job.distribution.warnings
    travel = travel_warning(job)
    if travel is not None:
        yield travel
    if not job.image_is_ours:
        yield from their_image_warnings(job)
    elif job.distribution.ours is not None and job.terms is not None:
        yield from _image_warnings(job.terms.image_uri)


def _image_warnings(image: Any) -> Iterator[str]:
    name = image.rpartition("/")[2].partition(":")[0] if isinstance(image, str) else ""
    if _DEEP_LEARNING_CONTAINER.fullmatch(name):
        yield (
            f"image_uri is {image!r}, which is called as AWS's Deep Learning Containers are: their"
            " launcher does not read what asks ours, and every host runs one process. Pass an image"
            " that holds sagemaker-dist-runtime."
        )


def fit_faults(job: Job) -> Iterator[OptionError]:
    """What would keep this job from starting or from reading its data."""
    yield from source_faults(job.source)
    if job.on_this_machine and job.source is not None and job.source.in_s3:
        yield OptionError(
            f"source_dir is {job.source.directory!r}",
            f"{job.instance_type} runs code of this machine",
            "Download and unpack it, and pass the directory",
        )
    if job.on_this_machine and job.instance_count is None:
        yield OptionError(
            "instance_count is left out", "the job has to know its hosts", "Pass instance_count=1"
        )
    yield from _count_faults(job)
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
    yield from name_faults(job.channels)
    is_theirs = job.instance_type in LOCAL and not job.on_this_machine
    if not is_theirs:  # SageMaker's local mode reads and checks in its own way
        yield from channel_faults(
            job.channels, on_this_machine=job.on_this_machine, instance_type=job.instance_type
        )
    yield from _local_hyperparameter_faults(job)
    if job.terms is not None and job.on_sagemaker:
        yield from _service_faults(job, job.terms)
        yield from hostless_faults(job.terms)
        yield from input_faults(job.terms, job.channels)


def _local_hyperparameter_faults(job: Job) -> Iterator[OptionError]:
    """What no script gets, wherever it runs; nobody here minds SageMaker's limits."""
    if job.terms is not None and job.on_this_machine:
        terms = replace(job.terms, limits={})
        yield from hyperparameter_faults(terms, is_ours=job.distribution.is_launched)


def _service_faults(job: Job, terms: Terms) -> Iterator[OptionError]:
    asked = job.distribution
    yield from service_faults(terms, asked.group_names, is_ours=asked.is_launched)
    yield from environment_faults(terms, job.environment)
    if job.instance_type is not None:  # a pipeline may yet choose this machine, and file://
        yield from place_faults(terms, "output_path", job.output_path)
        yield from place_faults(terms, "checkpoint_s3_uri", job.checkpoint_s3_uri)


def _count_faults(job: Job) -> Iterator[OptionError]:
    ours, (_, hosts) = job.distribution.ours, job.training_hosts
    if ours is not None and type(hosts) is int and hosts > 0:
        yield from host_faults(ours, hosts)
    yield from model_faults(job)
    count = job.instance_count
    if count is None:
        return
    try:
        is_integer = not isinstance(count, bool) and index(count) is not None
    except TypeError:
        is_integer = False
    if not is_integer or count < 1:
        yield OptionError(
            f"instance_count is {count!r}",
            "a job has at least one host" if is_integer else "it is no integer",
            "Pass an integer of at least 1",
        )


def source_faults(source: Source | None) -> Iterator[OptionError]:
    """An entry point or source_dir that is not there."""
    if source is None or source.in_s3:
        return
    if not source.directory_exists:
        yield OptionError(
            f"source_dir is {source.directory!r}",
            "there is no such directory",
            "Correct the path",
        )
    elif not source.exists:
        where = f" in source_dir {source.directory!r}" if source.directory else ""
        if not where and not PurePosixPath(source.entry_point).is_absolute():
            where = " in the current directory"
        yield OptionError(
            f"entry_point is {source.entry_point!r}",
            f"there is no such file{where}",
            "Correct the path",
        )
    elif source.is_launched:
        yield from _script_faults(source)


def _script_faults(source: Source) -> Iterator[OptionError]:
    what = f"entry_point is {source.entry_point!r}"
    if not source.entry_point.endswith(".py"):
        yield OptionError(what, "only Python scripts are started", "Pass a .py file")
    path = PurePosixPath(normpath(source.entry_point))
    if source.directory is not None and (path.is_absolute() or path.parts[:1] == ("..",)):
        yield OptionError(
            what,
            f"it is not relative to source_dir {source.directory!r}, all that the job sees",
            "Pass the path of the script below source_dir",
        )


def _environment_faults(environment: Any) -> Iterator[OptionError]:
    if not isinstance(environment, Mapping):
        yield OptionError(
            f"environment is a {type(environment).__name__}",
            "it maps names to values",
            "Pass a dict such as {'NAME': 'value'}",
        )
        return
    for name, value in environment.items():
        if not isinstance(name, str) or not name or "=" in name or "\0" in name:
            yield OptionError(
                f"environment has the name {name!r}",
                "a name is text without '=' and NUL",
                "Correct the name",
            )
        if not isinstance(value, str) or "\0" in value:
            yield OptionError(
                f"environment[{name!r}] is {value!r}",
                "a value is text without NUL",
                "Pass a str",
            )


def _instance_faults(job: Job) -> Iterator[OptionError]:
    name = job.instance_type
    valid = {*training_instances(), *LOCAL, LOCAL_PROCESS}
    if name in LOCAL and not job.local_session:
        yield OptionError(
            f"instance_type is {name!r}",
            "sagemaker_session is one of AWS",
            "Leave sagemaker_session out, or pass a LocalSession",
        )
    if name is None or name in valid or job.known_to_boto3:
        return
    mend = closest(str(name), valid)
    if len(mend) > 200:  # every type there is would be no help
        mend = "Pass a type such as 'ml.p4d.24xlarge', or 'local_process'"
    yield OptionError(
        f"instance_type is {name!r}", "SageMaker training has no such instance type", mend
    )


def _launch_faults(job: Job) -> Iterator[OptionError]:
    groups: Any = job.other.get("instance_groups")
    groups = groups if isinstance(groups, (list, tuple)) else ()
    if len(groups) > 1 and not job.distribution.group_names:
        yield OptionError(
            f"instance_groups has {len(groups)} groups, and distribution names none",
            "each would train on its own",
            "Pass OnInstanceGroup(strategy=..., group=...), or add 'instance_groups': [group]"
            " to the dict",
        )
    for name in ("training_recipe", "compiler_config"):
        if job.other.get(name) is not None:
            yield OptionError(
                f"{name} is set",
                "the distribution of sagemaker_dist does not run with it",
                f"Leave {name} out, or leave distribution out",
            )
    yield from _version_faults(job)


def _version_faults(job: Job) -> Iterator[OptionError]:
    asked, held = job.framework_version, job.image_version
    if asked is None or f"{held}.".startswith(f"{asked}."):
        return
    why = f"the image of this version of sagemaker_dist holds {held}"
    mend = "Leave framework_version out, or pass image_uri"
    if job.instance_type == LOCAL_PROCESS:
        why = f"{LOCAL_PROCESS} uses no image: it runs the {job.kind} that is installed here"
        mend = "Leave framework_version out"
    yield OptionError(f"framework_version is {asked!r}", why, mend)
