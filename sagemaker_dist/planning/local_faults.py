# SPDX-License-Identifier: Apache-2.0
"""Checks of local jobs: unsupported options, and directories that the job cannot write to."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import PurePosixPath
from typing import Any, Final

from sagemaker_dist.catalog import LOCAL
from sagemaker_dist.errors import OptionError
from sagemaker_dist.planning.distribution_support import active_keys
from sagemaker_dist.planning.job import Job
from sagemaker_dist.planning.locations import FILE, scheme_of

_ML_ROOT: Final = PurePosixPath("/opt/ml")
_TAKEN: Final = ("code", "input", "model", "output")  # directories in it that every job has
CONTAINER_ONLY: Final = (
    "container_arguments",
    "container_entry_point",
    "enable_network_isolation",
)
NO_EFFECT: Final = (  # options of SageMaker's instances and networks
    "keep_alive_period_in_seconds",
    "rules",
    "security_group_ids",
    "subnets",
)


def local_faults(job: Job) -> Iterator[OptionError]:
    """Yield the faults of arguments that jobs on this machine do not support or cannot use."""
    here = job.instance_type
    if not job.own_session:
        yield OptionError(
            "sagemaker_session is not a LocalSession of sagemaker_dist",
            f"a job with instance_type={here!r} runs on this machine and does not call SageMaker",
            "Leave sagemaker_session out",
            about="sagemaker_session",
            kind="conflict",
        )
    for key in [] if job.uses_launcher else active_keys(job.distribution):
        yield OptionError(
            f"distribution requests {key!r} in SageMaker's image",
            f"instance_type={here} starts ranks only in images with the sagemaker-dist launcher",
            "Leave out framework_version and py_version, which select SageMaker's image,"
            " or pass a LocalSession of sagemaker.local",
            about=("distribution", *key.split(".")),
            kind="unsupported",
        )
    if job.uses_launcher and job.distribution.group_names and not job.other.get("instance_groups"):
        yield OptionError(
            "distribution has instance_groups",
            f"a job with instance_type={here!r} has no instance groups",
            "Leave instance_groups out",
            about=("distribution", "instance_groups"),
            kind="unsupported",
        )
    for name in ("instance_groups", "training_recipe", "use_spot_instances"):
        is_reported = name == "training_recipe" and job.distribution.is_launched
        if job.other.get(name) and not is_reported:
            why = f"{here} does not support it"
            yield OptionError(f"{name} is set", why, f"Leave {name} out", name, "unsupported")
    for name in sorted(NO_EFFECT if here in LOCAL else (*CONTAINER_ONLY, *NO_EFFECT)):
        if job.other.get(name):
            why = f"it has no effect on {here}"
            yield OptionError(f"{name} is set", why, f"Leave {name} out", name, "no_effect")
    yield from _place_faults(job)


def _place_faults(job: Job) -> Iterator[OptionError]:
    for name in ("output_path", "checkpoint_s3_uri"):
        uri = getattr(job, name)
        if uri and not str(uri).startswith(FILE + "/"):
            known = {
                "s3": (f"{job.instance_type} does not upload to S3", "unsupported"),
                "": ("it is a path, and a file:// URI is needed", "relative"),
            }
            reason, fault = known.get(
                scheme_of(str(uri)),
                ("a local job writes only to absolute file:// URIs", "unsupported"),
            )
            yield OptionError(
                f"{name} is {uri!r}",
                reason,
                "Pass Path(...).absolute().as_uri(), or leave it out",
                about=name,
                kind=fault,
            )
        elif name in job.obstacles:
            at = job.obstacles[name]
            yield OptionError(
                f"{name} is {uri!r}",
                f"{at.path} is not {'writable' if at.is_directory else 'a directory'}",
                "Pass a directory that can be written to, or leave it out",
                about=name,
                kind="not_writable" if at.is_directory else "not_a_directory",
            )
    path: Any = job.checkpoint_local_path
    refused = _why_not(job, PurePosixPath(str(path))) if path is not None else None
    if refused is not None:
        why, fault = refused
        yield OptionError(
            f"checkpoint_local_path is {path!r}",
            why,
            "Leave it out: the script finds the directory in SM_CHECKPOINT_DIR",
            about="checkpoint_local_path",
            kind=fault,
        )


def _why_not(job: Job, path: PurePosixPath) -> tuple[str, str] | None:
    """Return reason and kind of the error about a directory for checkpoints; None if no error."""
    if ".." in path.parts or path == _ML_ROOT or not path.is_relative_to(_ML_ROOT):
        return f"{job.instance_type} supports only directories below /opt/ml", "outside"
    taken = next((name for name in _TAKEN if path.is_relative_to(_ML_ROOT / name)), None)
    return (f"/opt/ml/{taken} is used for other files", "reserved") if taken else None
