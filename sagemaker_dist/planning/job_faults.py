# SPDX-License-Identifier: Apache-2.0
"""All checks of a job before it starts.

The checks use the facts in a `Job`, which were collected before. Faults are yielded as errors, and
the caller raises all errors together.
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
from sagemaker_dist.contract.option_variables import conflict_faults, misspelt, value_faults
from sagemaker_dist.errors import OptionError, closest
from sagemaker_dist.planning.aws_image_checks import aws_image_faults, aws_image_warnings
from sagemaker_dist.planning.channel_checks import channel_faults, name_faults
from sagemaker_dist.planning.distribution_support import launcher_faults
from sagemaker_dist.planning.gradient_transport import transport_warning
from sagemaker_dist.planning.job import Job, Source
from sagemaker_dist.planning.local_faults import local_faults
from sagemaker_dist.planning.service.groups import hostless_faults
from sagemaker_dist.planning.service.hyperparameter_checks import (
    environment_faults,
    hyperparameter_faults,
)
from sagemaker_dist.planning.service.input_checks import input_faults
from sagemaker_dist.planning.service.s3_places import place_faults
from sagemaker_dist.planning.service.service_checks import service_faults
from sagemaker_dist.planning.service.terms import Terms
from sagemaker_dist.planning.split_checks import model_faults

# Repositories of AWS's Deep Learning Containers for training (its list of images, 2026-11-21).
_DEEP_LEARNING_CONTAINER: Final = re.compile(
    r"(huggingface-)?(pytorch|tensorflow|mxnet)-(training|trcomp)(-\w+)?"
    r"|smdistributed-modelparallel"
)
_BASE_NAME: Final = re.compile(r"[a-zA-Z0-9][a-zA-Z0-9-]*")  # the SDK shortens it, adds the time
JOB_NAME: Final = re.compile(r"[a-zA-Z0-9](-*[a-zA-Z0-9]){0,62}")  # CreateTrainingJob
JOB_NAME_RULE: Final = (
    "a name consists of 1 to 63 letters, digits and hyphens, and neither begins nor ends"
    " with a hyphen"
)

_PASSED_TO_FIT: Final = {  # arguments of the estimator's `fit`
    name: f"Pass it to fit({name}=...)" for name in ("inputs", "job_name", "wait", "logs")
}


def construction_faults(job: Job) -> Iterator[OptionError]:
    """Yield the faults of an estimator's arguments that can be found without its input data."""
    for name in job.unknown:
        yield OptionError(
            f"the estimator was given the argument {name}=",
            "it is unknown, and SageMaker's SDK would silently ignore it",
            _PASSED_TO_FIT.get(name) or closest(name, job.valid),
            about=name,
            kind="misplaced" if name in _PASSED_TO_FIT else "unknown",
        )
    yield from _instance_faults(job)
    yield from _count_faults(job)
    if job.checkpoint_local_path and not job.keeps_checkpoints:
        what = f"checkpoint_local_path is {job.checkpoint_local_path!r}"
        why = "without checkpoint_s3_uri, files that are written there are lost after the job"
        hint = "Pass checkpoint_s3_uri too, or leave checkpoint_local_path out"
        yield OptionError(what, why, hint, "checkpoint_local_path", "missing")
    if job.base_job_name is not None and not _BASE_NAME.fullmatch(str(job.base_job_name)):
        yield OptionError(
            f"base_job_name is {job.base_job_name!r}",
            "a name consists of letters, digits and hyphens, and does not begin with a hyphen",
            "Correct the name, or leave base_job_name out",
            about="base_job_name",
        )
    if job.instance_type not in LOCAL or job.on_this_machine:
        yield from _environment_faults(job.environment)
        yield from _variable_faults(job)
    if job.uses_launcher:
        yield from launcher_faults(job)
    elif not job.on_this_machine:
        yield from aws_image_faults(job)
    if job.distribution.is_launched:
        yield from _launch_faults(job)
        yield from capability_faults(job)
    if job.on_this_machine:
        yield from local_faults(job)
    yield from _local_hyperparameter_faults(job)
    if job.terms is not None and job.on_sagemaker:
        yield from _service_faults(job, job.terms)


def construction_warnings(job: Job) -> Iterator[str]:
    """Yield warnings about requests that work differently from what the user may expect."""
    yield from job.distribution.warnings
    transport = transport_warning(job)
    if transport is not None:
        yield transport
    if not job.uses_launcher:
        yield from aws_image_warnings(job)
    elif job.distribution.engine is not None and job.terms is not None:
        yield from _image_warnings(job.terms.image_uri)


def _image_warnings(image: Any) -> Iterator[str]:
    name = image.rpartition("/")[2].partition(":")[0] if isinstance(image, str) else ""
    if _DEEP_LEARNING_CONTAINER.fullmatch(name):
        yield (
            f"image_uri is {image!r}, which is an image of AWS's Deep Learning Containers: their"
            " launcher ignores the options of sagemaker-dist, so every host would run one process."
            " Pass an image with sagemaker-dist-runtime."
        )


def fit_faults(job: Job) -> Iterator[OptionError]:
    """Yield the faults that would prevent the job from starting or from reading its data."""
    yield from source_faults(job.source)
    if job.on_this_machine and job.source is not None and job.source.in_s3:
        yield OptionError(
            f"source_dir is {job.source.directory!r}",
            f"{job.instance_type} runs only code on this machine",
            "Download and unpack the tarball, and pass its directory",
            about="source_dir",
            kind="unsupported",
        )
    if job.on_this_machine and job.instance_count is None:
        yield OptionError(
            "instance_count is left out",
            "a job needs the number of its hosts",
            "Pass instance_count=1",
            about="instance_count",
            kind="missing",
        )
    yield from _count_faults(job)
    yield from _name_faults(job)
    yield from name_faults(job.channels)
    is_aws_local_mode = job.instance_type in LOCAL and not job.on_this_machine
    if not is_aws_local_mode:  # SageMaker's local mode has its own checks
        yield from channel_faults(
            job.channels, on_this_machine=job.on_this_machine, instance_type=job.instance_type
        )
    yield from _local_hyperparameter_faults(job)
    if job.terms is not None and job.on_sagemaker:
        yield from _service_faults(job, job.terms)
        yield from hostless_faults(job.terms)
        yield from input_faults(job.terms, job.channels)


def _name_faults(job: Job) -> Iterator[OptionError]:
    if job.job_name is not None and not JOB_NAME.fullmatch(str(job.job_name)):
        yield OptionError(
            f"job_name is {job.job_name!r}",
            JOB_NAME_RULE,
            "Correct the name, or leave job_name out",
            about="job_name",
        )
    elif job.job_exists:
        yield OptionError(
            f"job_name is {job.job_name!r}",
            "a job with this name exists already",
            "Pass another name, or leave job_name out",
            about="job_name",
            kind="conflict",
        )


def _local_hyperparameter_faults(job: Job) -> Iterator[OptionError]:
    """Yield faults of hyperparameters that cannot be passed to the script of a local job.

    SageMaker's limits are not checked, because they do not apply to local jobs.
    """
    if job.terms is not None and job.on_this_machine:
        terms = replace(job.terms, limits={})
        yield from hyperparameter_faults(terms, has_launcher=job.distribution.is_launched)


def _service_faults(job: Job, terms: Terms) -> Iterator[OptionError]:
    distribution = job.distribution
    yield from service_faults(
        terms, distribution.group_names, has_launcher=distribution.is_launched
    )
    yield from environment_faults(terms, job.environment)
    if job.instance_type is not None:  # a pipeline could select a local type, which takes file://
        yield from place_faults(terms, "output_path", job.output_path)
        yield from place_faults(terms, "checkpoint_s3_uri", job.checkpoint_s3_uri)


def _count_faults(job: Job) -> Iterator[OptionError]:
    engine, (_, hosts) = job.distribution.engine, job.training_hosts
    if engine is not None and type(hosts) is int and hosts > 0:
        yield from host_faults(engine, hosts)
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
            "a job has at least one host" if is_integer else "it is not an integer",
            "Pass an integer of at least 1",
            about="instance_count",
        )


def source_faults(source: Source | None) -> Iterator[OptionError]:
    """Yield a fault if the entry point or source_dir does not exist or cannot be launched."""
    if source is None or source.in_s3:
        return
    if not source.directory_exists:
        yield OptionError(
            f"source_dir is {source.directory!r}",
            "this directory does not exist",
            "Correct the path",
            about="source_dir",
            kind="missing_file",
        )
    elif not source.exists:
        where = f" in source_dir {source.directory!r}" if source.directory else ""
        if not where and not PurePosixPath(source.entry_point).is_absolute():
            where = " in the current directory"
        yield OptionError(
            f"entry_point is {source.entry_point!r}",
            f"this file does not exist{where}",
            "Correct the path",
            about="entry_point",
            kind="missing_file",
        )
    elif source.is_launched:
        yield from _script_faults(source)


def _script_faults(source: Source) -> Iterator[OptionError]:
    what = f"entry_point is {source.entry_point!r}"
    if not source.entry_point.endswith(".py"):
        yield OptionError(
            what,
            "ranks run only Python scripts",
            "Pass the path of a .py file",
            about="entry_point",
            kind="unsupported",
        )
    path = PurePosixPath(normpath(source.entry_point))
    if source.directory is not None and (path.is_absolute() or path.parts[:1] == ("..",)):
        yield OptionError(
            what,
            f"it is not in source_dir {source.directory!r}, and only that directory is sent",
            "Pass a path of the script that is relative to source_dir",
            about="entry_point",
            kind="outside",
        )


def _environment_faults(environment: Any) -> Iterator[OptionError]:
    if not isinstance(environment, Mapping):
        yield OptionError(
            f"environment is of type {type(environment).__name__}",
            "it must be a dict of names and values",
            "Pass a dict such as {'NAME': 'value'}",
            about="environment",
            kind="type",
        )
        return
    for name, value in environment.items():
        if not isinstance(name, str) or not name or "=" in name or "\0" in name:
            yield OptionError(
                f"environment has the name {name!r}",
                "a name must be a non-empty str without '=' and NUL",
                "Correct the name",
                about=("environment", str(name)),
            )
        if not isinstance(value, str) or "\0" in value:
            yield OptionError(
                f"environment[{name!r}] is {value!r}",
                "a value must be a str without NUL",
                "Pass a str",
                about=("environment", name),
                kind="nul" if isinstance(value, str) else "type",
            )


def _variable_faults(job: Job) -> Iterator[OptionError]:
    """Yield faults of variables SMDIST_* in `environment`, which the ranks of the job would read.

    Pipeline variables are not checked.
    """
    engine, environment = job.distribution.engine, job.environment
    if engine is None or not isinstance(environment, Mapping):
        return
    texts = {name: text for name, text in environment.items() if text and isinstance(text, str)}
    faults = [*misspelt(texts), *value_faults(texts)]
    for fault in faults or conflict_faults(engine, texts):
        fault.about = "environment", *fault.about
        yield fault


def _instance_faults(job: Job) -> Iterator[OptionError]:
    name = job.instance_type
    valid = {*training_instances(), *LOCAL, LOCAL_PROCESS}
    if name in LOCAL and not job.local_session:
        yield OptionError(
            f"instance_type is {name!r}",
            "a job on this machine needs a LocalSession, and sagemaker_session is not one",
            "Leave sagemaker_session out, or pass a LocalSession",
            about="instance_type",
            kind="conflict",
        )
    if name is None or name in valid or job.known_to_boto3:
        return
    hint = closest(str(name), valid)
    if len(hint) > 200:  # a list of all types would be too long
        hint = "Pass a type such as 'ml.p4d.24xlarge', or 'local_process'"
    yield OptionError(
        f"instance_type is {name!r}",
        "SageMaker training has no such instance type",
        hint,
        about="instance_type",
        kind="unknown",
    )


def capability_faults(job: Job) -> Iterator[OptionError]:
    """Yield a fault if ranks in the default image cannot use the accelerators of the instance type.

    Nothing is checked if the user passes an image.
    """
    kind, _ = job.training_hosts
    instance = training_instances().get(str(kind))
    if not job.distribution.is_launched or instance is None or job.names_image:
        return
    if instance.is_neuron:
        yield OptionError(
            f"instance_type is {instance.name!r}",
            "it has Neuron accelerators, and the sagemaker-dist image has no Neuron SDK:"
            " ranks would train on the host's CPUs",
            "Pass a type with GPUs or with CPUs alone,"
            " or the image_uri of an image with the Neuron SDK",
            about="instance_type",
            kind="unsupported",
        )


def _launch_faults(job: Job) -> Iterator[OptionError]:
    groups: Any = job.other.get("instance_groups")
    groups = groups if isinstance(groups, (list, tuple)) else ()
    if len(groups) > 1 and not job.distribution.group_names:
        yield OptionError(
            f"instance_groups has {len(groups)} groups, and distribution names none of them",
            "the ranks of each group would train separately from those of the others",
            "Pass OnInstanceGroup(strategy=..., group=...), or add 'instance_groups': [group]"
            " to the dict",
            about="instance_groups",
            kind="missing",
        )
    for name in ("training_recipe", "compiler_config"):
        if job.other.get(name) is not None:
            yield OptionError(
                f"{name} is set",
                "the sagemaker-dist launcher does not support it",
                f"Leave {name} out, or leave distribution out",
                about=name,
                kind="unsupported",
            )
    yield from _version_faults(job)


def _version_faults(job: Job) -> Iterator[OptionError]:
    requested, available = job.framework_version, job.image_version
    if requested is None or f"{available}.".startswith(f"{requested}."):
        return
    why = f"the image of this version of sagemaker_dist has version {available}"
    hint = "Leave framework_version out, or pass image_uri"
    if job.instance_type == LOCAL_PROCESS:
        why = f"{LOCAL_PROCESS} uses no image, but the {job.kind} that is installed"
        hint = "Leave framework_version out"
    yield OptionError(
        f"framework_version is {requested!r}",
        why,
        hint,
        about="framework_version",
        kind="unsupported",
    )
