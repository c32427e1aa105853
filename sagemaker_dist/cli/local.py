# SPDX-License-Identifier: Apache-2.0
"""`sagemaker-dist local`: the job of a job file on this machine.

What only SageMaker has is left out, with a note. What would change what the script
sees is refused by the checks of local jobs: file systems, network isolation of processes.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from sagemaker_dist.cli import screen
from sagemaker_dist.cli.jobs import run_job
from sagemaker_dist.cli.options import job_options, json_option
from sagemaker_dist.planning.faults import JOB_NAME
from sagemaker_dist.runners import LocalRunner
from sagemaker_dist.runners.viewer import watch

if TYPE_CHECKING:
    from sagemaker_dist.jobs import TrainingJob
    from sagemaker_dist.jobs.job_file import JobFile

_SERVICE: Final = (  # about SageMaker's instances, networks, storage and names
    "role",
    "code_location",
    "encrypt_inter_container_traffic",
    "instance_groups",
    "keep_alive_period_in_seconds",
    "max_retry_attempts",
    "max_wait",
    "metric_definitions",
    "output_kms_key",
    "security_group_ids",
    "subnets",
    "tags",
    "training_plan",
    "use_spot_instances",
    "volume_kms_key",
    "volume_size",
)
_PLACES: Final = {
    "output_path": "the model goes to the job's folder",
    "checkpoint_s3_uri": "checkpoints lie in the job's folder, and begin anew",
}


@click.command()
@job_options
@click.option("--containers", is_flag=True, help="In containers of this machine's Docker engine.")
@click.option("--gpus", is_flag=True, help="As --containers; they divide this machine's GPUs.")
@click.option(
    "--hosts", type=click.IntRange(min=1), metavar="N", help="How many. Default: as FILE says."
)
@click.option("--detach", is_flag=True, help="Print the name and return at once.")
@json_option
def local(
    *,
    file: Path, settings: tuple[str, ...], containers: bool, gpus: bool, hosts: int | None,
    detach: bool, as_json: bool,
) -> int:  # fmt: skip
    """Run the job of FILE here: each host as processes, or as a container.

    What only SageMaker has is left out, with a note. What lies in S3 is downloaded.
    Ctrl-C stops the job.
    """
    from sagemaker_dist.jobs.job_file import read_job_file

    kind = "local_gpu" if gpus else "local" if containers else "local_process"
    read = read_job_file(file, settings)
    changes, notes = local_changes(read, kind, hosts)
    job = read.job(**changes)
    for each in notes:
        screen.note(each)
    try:
        return run_job(job, wait=not detach, as_json=as_json)
    except (KeyboardInterrupt, SystemExit):
        _stop(job)
        raise


def _stop(job: TrainingJob) -> None:
    """A job that is watched ends with the command: ranks get two minutes, or a second Ctrl-C."""
    here = LocalRunner()
    if not here.exists(job.name):
        return
    screen.note(f"{job.name} stops and saves what it can; Ctrl-C again kills it")
    here.stop(job.name)
    try:
        watch(here, job.name, new_only=True)
    except KeyboardInterrupt:
        here.stop(job.name, now=True)
        watch(here, job.name, new_only=True)


def local_changes(
    file: JobFile, kind: str, hosts: int | None = None
) -> tuple[dict[str, Any], list[str]]:
    """What a job file says otherwise on this machine, and what to tell of it."""
    values = file.values
    dropped = [name for name in _SERVICE if values.get(name)]
    if kind == "local_process" and values.get("image_uri"):
        dropped.append("image_uri")
    changes: dict[str, Any] = dict.fromkeys(dropped)
    notes = [f"left out, for it is SageMaker's: {', '.join(dropped)}"] if dropped else []
    for name, instead in _PLACES.items():
        if str(values.get(name, "")).startswith("s3://"):
            changes[name] = None
            notes.append(f"{name} is in S3 and left out: {instead}")
    if values.get("checkpoint_s3_uri") and changes.get("checkpoint_s3_uri", "") is None:
        changes["checkpoint_local_path"] = None
    if isinstance(values.get("job_name"), str) and ("job_name",) not in file.origins.settings:
        changes |= {"job_name": None, "base_job_name": values.get("base_job_name") or _base(values)}
        notes.append(
            "job_name is left out, for SageMaker's job is called so: here the time is added"
        )
    count = hosts or _count(values)
    return changes | {"instance_type": kind, "instance_count": count}, notes


def _base(values: Mapping[str, Any]) -> str | None:
    """The name of a job, as that of others is made of it."""
    name = str(values["job_name"])
    return name if JOB_NAME.fullmatch(name) else None


def _count(values: Mapping[str, Any]) -> Any:
    """Hosts of all groups together; what is no number is left to the checks."""
    groups = values.get("instance_groups")
    if not isinstance(groups, list):
        return values.get("instance_count")
    counts = [each.get("instance_count") for each in groups if isinstance(each, dict)]
    return sum(each for each in counts if isinstance(each, int)) or None
