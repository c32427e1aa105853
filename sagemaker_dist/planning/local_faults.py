# SPDX-License-Identifier: Apache-2.0
"""What jobs of this machine cannot do, and where they may not write."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import PurePosixPath
from typing import Any, Final

from sagemaker_dist.catalog import LOCAL
from sagemaker_dist.errors import OptionError
from sagemaker_dist.planning.job import Job
from sagemaker_dist.planning.locations import FILE, scheme_of
from sagemaker_dist.planning.strategies import asked_keys

_ML_ROOT: Final = PurePosixPath("/opt/ml")
_TAKEN: Final = ("code", "input", "model", "output")  # what a job finds there
CONTAINER_ONLY: Final = (
    "container_arguments",
    "container_entry_point",
    "enable_network_isolation",
)
NO_EFFECT: Final = (  # they are about SageMaker's instances and networks
    "keep_alive_period_in_seconds",
    "rules",
    "security_group_ids",
    "subnets",
)


def local_faults(job: Job) -> Iterator[OptionError]:
    """What is wrong with the arguments of an estimator whose jobs run on this machine."""
    here = job.instance_type
    if not job.own_session:
        yield OptionError(
            "sagemaker_session is not a LocalSession of sagemaker_dist",
            f"{here} does not talk to SageMaker",
            "Leave sagemaker_session out",
        )
    for key in [] if job.image_is_ours else asked_keys(job.distribution):
        yield OptionError(
            f"distribution asks for {key!r} in SageMaker's image",
            f"{here} starts ranks in images that hold our launcher",
            "Leave the version out for our image, or pass a LocalSession of sagemaker.local",
        )
    if job.image_is_ours and job.distribution.group_names and not job.other.get("instance_groups"):
        yield OptionError(
            "distribution names instance_groups", f"{here} has no such thing", "Leave them out"
        )
    for name in ("instance_groups", "training_recipe", "use_spot_instances"):
        is_said = name == "training_recipe" and job.distribution.is_launched
        if job.other.get(name) and not is_said:
            yield OptionError(f"{name} is set", f"{here} has no such thing", f"Leave {name} out")
    for name in sorted(NO_EFFECT if here in LOCAL else (*CONTAINER_ONLY, *NO_EFFECT)):
        if job.other.get(name):
            yield OptionError(f"{name} is set", f"it has no effect on {here}", f"Leave {name} out")
    yield from _place_faults(job)


def _place_faults(job: Job) -> Iterator[OptionError]:
    for name in ("output_path", "checkpoint_s3_uri"):
        uri = getattr(job, name)
        if uri and not str(uri).startswith(FILE + "/"):
            known = {"s3": f"{job.instance_type} does not upload to S3", "": "it is a bare path"}
            reason = known.get(scheme_of(str(uri)), "only absolute file:// places are written")
            yield OptionError(
                f"{name} is {uri!r}",
                reason,
                "Pass Path(...).absolute().as_uri(), or leave it out",
            )
        elif name in job.obstacles:
            at = job.obstacles[name]
            yield OptionError(
                f"{name} is {uri!r}",
                f"{at.path} is {'not writable' if at.is_directory else 'no directory'}",
                "Pass a directory that can be written to, or leave it out",
            )
    path: Any = job.checkpoint_local_path
    why = _why_not(job, PurePosixPath(str(path))) if path is not None else None
    if why is not None:
        yield OptionError(
            f"checkpoint_local_path is {path!r}",
            why,
            "Leave it out: checkpoints lie in SM_CHECKPOINT_DIR",
        )


def _why_not(job: Job, path: PurePosixPath) -> str | None:
    if ".." in path.parts or path == _ML_ROOT or not path.is_relative_to(_ML_ROOT):
        return f"{job.instance_type} maps only what lies below /opt/ml"
    taken = next((name for name in _TAKEN if path.is_relative_to(_ML_ROOT / name)), None)
    return f"/opt/ml/{taken} holds something else" if taken else None
