# SPDX-License-Identifier: Apache-2.0
"""The command `sagemaker-dist local`, which runs the job of a job file on this machine.

Options that only SageMaker has are left out, and a note says so. Two options cannot be left out,
because the script would find other data or another network: file systems as inputs, and network
isolation of processes. A job with them is refused.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from sagemaker_dist.cli import screen
from sagemaker_dist.cli.job_commands import run_job
from sagemaker_dist.cli.shared_options import job_options, json_option
from sagemaker_dist.planning.job_faults import JOB_NAME
from sagemaker_dist.runners import LocalRunner
from sagemaker_dist.runners.viewer import watch

if TYPE_CHECKING:
    from sagemaker_dist.jobs import TrainingJob
    from sagemaker_dist.jobs.job_file import JobFile

_SERVICE: Final = (  # options of SageMaker's instances, networks, storage and names
    "role",
    "code_location",
    "encrypt_inter_container_traffic",
    "instance_groups",
    "keep_alive_period_in_seconds",
    "max_cost",
    "max_retry_attempts",
    "max_wait",
    "metric_definitions",
    "output_kms_key",
    "price_per_hour",
    "security_group_ids",
    "subnets",
    "tags",
    "training_plan",
    "use_spot_instances",
    "volume_kms_key",
    "volume_size",
)
_PLACES: Final = {
    "output_path": "the model is written to the job's folder",
    "checkpoint_s3_uri": "checkpoints are written to the job's folder, which starts empty",
}


@click.command()
@job_options
@click.option(
    "--containers", is_flag=True, help="Run hosts as containers of this machine's Docker engine."
)
@click.option(
    "--gpus", is_flag=True, help="Like --containers, and divide this machine's GPUs among them."
)
@click.option(
    "--hosts", type=click.IntRange(min=1), metavar="N", help="Number of hosts. Default: FILE's."
)
@click.option("--detach", is_flag=True, help="Print the job's name and return without waiting.")
@json_option
def local(
    *,
    file: Path, settings: tuple[str, ...], containers: bool, gpus: bool, hosts: int | None,
    detach: bool, as_json: bool,
) -> int:  # fmt: skip
    """Run the job of FILE here: each host as processes, or as a container.

    Options that only SageMaker has are left out, with a note. Data in S3 is downloaded. Ctrl-C
    stops the job.
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
    """Stop the job after Ctrl-C, and show its output until it ends.

    The job's ranks have two minutes to save a checkpoint; a second Ctrl-C kills them at once.
    """
    here = LocalRunner()
    if not here.exists(job.name):
        return
    screen.note(f"stopping {job.name}: its ranks have two minutes to save; Ctrl-C again kills it")
    here.stop(job.name)
    try:
        watch(here, job.name, new_only=True)
    except KeyboardInterrupt:
        here.stop(job.name, now=True)
        watch(here, job.name, new_only=True)


def local_changes(
    file: JobFile, kind: str, hosts: int | None = None
) -> tuple[dict[str, Any], list[str]]:
    """Return the changes that make a job file's job a local job, and notes about them for the user.

    The changes are new values of options, by the option's name; the value None removes the option.

    Args:
        file: The job file.
        kind: Instance type of the local job, such as "local_process".
        hosts: Number of hosts; None for the number in the job file.
    """
    values = file.values
    dropped = [name for name in _SERVICE if values.get(name)]
    if kind == "local_process" and values.get("image_uri"):
        dropped.append("image_uri")
    changes: dict[str, Any] = dict.fromkeys(dropped)
    notes = [f"left out, only for SageMaker: {', '.join(dropped)}"] if dropped else []
    for name, instead in _PLACES.items():
        if str(values.get(name, "")).startswith("s3://"):
            changes[name] = None
            notes.append(f"{name} is in S3, so it is left out: {instead}")
    if values.get("checkpoint_s3_uri") and changes.get("checkpoint_s3_uri", "") is None:
        changes["checkpoint_local_path"] = None
    if isinstance(values.get("job_name"), str) and ("job_name",) not in file.origins.settings:
        changes |= {"job_name": None, "base_job_name": values.get("base_job_name") or _base(values)}
        notes.append(
            "job_name is left out, because it names SageMaker's job: here the time is added to it"
        )
    count = hosts or _count(values)
    return changes | {"instance_type": kind, "instance_count": count}, notes


def _base(values: Mapping[str, Any]) -> str | None:
    """Return the value of the option `job_name`, or None if this value is not a valid name.

    `values` are the options of the job file.
    """
    name = str(values["job_name"])
    return name if JOB_NAME.fullmatch(name) else None


def _count(values: Mapping[str, Any]) -> Any:
    """Return the number of hosts in a job file, of all instance groups together.

    `values` are the options of the file. The result is None if they do not give the number. A wrong
    value of instance_count is returned unchanged; the checks of the job report it.
    """
    groups = values.get("instance_groups")
    if not isinstance(groups, list):
        return values.get("instance_count")
    counts = [each.get("instance_count") for each in groups if isinstance(each, dict)]
    return sum(each for each in counts if isinstance(each, int)) or None
