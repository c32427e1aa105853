# SPDX-License-Identifier: Apache-2.0
"""The commands `sagemaker-dist submit | logs | describe | stop`."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from sagemaker_dist.cli import screen
from sagemaker_dist.cli.find_job import runner_of
from sagemaker_dist.cli.shared_options import aws_options, complete_job, job_options, json_option

if TYPE_CHECKING:
    from sagemaker_dist.jobs import TrainingJob
    from sagemaker_dist.runners import Runner
    from sagemaker_dist.runners.protocol import Description

_FAILED: Final = 1
_TIMES: Final = {
    "created": "CreationTime",
    "started": "TrainingStartTime",
    "ended": "TrainingEndTime",
}
_name = click.argument("name", shell_complete=complete_job)


@click.command()
@job_options
@click.option(
    "--wait", is_flag=True, help="Print its output until it ends; exit with 1 unless it completes."
)
@json_option
@aws_options
def submit(
    *,
    file: Path,
    settings: tuple[str, ...],
    wait: bool,
    as_json: bool,
    region: str | None,
    profile: str | None,
) -> int:
    """Start the job of FILE; print its name, or with --wait its output.

    The instance type decides whether the job runs on SageMaker or on this machine. With --wait and
    --json, only the job's description is printed, when the job has ended.
    """
    from sagemaker_dist.jobs.job_file import read_job_file
    from sagemaker_dist.packaging import boto_session

    session = boto_session(region, profile) if region or profile else None
    job = read_job_file(file, settings).job(session=session)
    note = _still_running(job.name, region, profile)
    return run_job(job, wait=wait, as_json=as_json, on_interrupt=note)


def _still_running(name: str, region: str | None, profile: str | None) -> str:
    given = {"--region": region, "--profile": profile}
    more = "".join(f" {flag} {value}" for flag, value in given.items() if value)
    ends = f"sagemaker-dist stop {name}{more} ends it"
    return f"{name} keeps running. {ends}, sagemaker-dist logs {name} --follow{more} shows it."


def run_job(job: TrainingJob, *, wait: bool, as_json: bool, on_interrupt: str = "") -> int:
    """Start a job; print its name, or with `wait` its output until it ends.

    Return the command's exit status: 1 if `wait` is set and the job does not complete, else 0.

    Args:
        job: The job.
        wait: Wait until the job ends.
        as_json: Print JSON instead: the name, or with `wait` the description of the ended job.
        on_interrupt: Note that is printed when the user interrupts the wait.

    Raises:
        JobError: The job failed, with `wait` and without `as_json`.
    """
    for text in filter(None, [*job.warnings(), job.cost_limit]):
        screen.note(text)
    name = job.submit()
    if not wait:
        screen.print_json({"name": name}) if as_json else screen.line(name)
        return 0
    try:
        ended = _wait_without_output(job) if as_json else job.wait()
    except (KeyboardInterrupt, SystemExit):
        if on_interrupt:
            screen.note(on_interrupt)
        raise
    if as_json:
        screen.print_json(ended)
    return 0 if ended["TrainingJobStatus"] == "Completed" else _FAILED


def _wait_without_output(job: TrainingJob) -> Description:
    for _ in job.logs(follow=True):
        pass
    return job.describe()


@click.command()
@_name
@click.option("--follow", "-f", is_flag=True, help="Continue until the job ends.")
@aws_options
def logs(name: str, follow: bool, region: str | None, profile: str | None) -> None:
    """Print the output of job NAME, each line after its host's name."""
    from sagemaker_dist.runners.viewer import watch

    runner = runner_of(name, region, profile)
    if follow:
        watch(runner, name, layout=_layout(runner, name))
        return
    for text in _lines(runner.logs(name)):
        sys.stdout.write(text)


def _lines(segments: Iterator[str]) -> Iterator[str]:
    """Yield a job's output as lines for a pipe or file; a progress bar becomes its last state.

    `segments` end in a line break or, for a state of a progress bar, in a carriage return.
    """
    bar = ""
    for segment in segments:
        if segment.endswith("\r"):
            bar = segment.rstrip("\r") + "\n"
        elif segment:
            yield segment
            bar = ""
    if bar:
        yield bar


@click.command()
@_name
@json_option
@aws_options
def describe(name: str, as_json: bool, region: str | None, profile: str | None) -> None:
    """Show the state and cost of job NAME; --json prints the answer of DescribeTrainingJob."""
    from sagemaker_dist.cli.job_cost import cost_rows

    runner = runner_of(name, region, profile)
    found = runner.describe(name)
    if as_json:
        screen.print_json(found)
        return
    screen.plain_facts(_rows(found) | cost_rows(found) | {"logs": runner.logs_at(name)})


@click.command()
@_name
@aws_options
def stop(name: str, region: str | None, profile: str | None) -> None:
    """Stop job NAME; its ranks get two minutes to save."""
    runner = runner_of(name, region, profile)
    runner.stop(name)
    screen.line(f"{name}: {runner.describe(name)['TrainingJobStatus']}")


def _layout(runner: Runner, name: str) -> str:
    from sagemaker_dist.planning import plan_local_job
    from sagemaker_dist.runners import LocalRunner

    return plan_local_job(runner.describe(name)).layout if isinstance(runner, LocalRunner) else ""


def _rows(found: Description) -> dict[str, str]:
    status, detail = found["TrainingJobStatus"], found.get("SecondaryStatus", "")
    rows = {
        "name": found["TrainingJobName"],
        "status": status if detail in {"", status} else f"{status}, {detail}",
        "hosts": _hosts(found["ResourceConfig"]),
        "image": found["AlgorithmSpecification"].get("TrainingImage", ""),
        "restarts": "; ".join(
            f"attempt {each['attempt']}: {each['text']}" for each in found.get("Restarts", ())
        ),
        "why": found.get("FailureReason", ""),
        "model": found.get("ModelArtifacts", {}).get("S3ModelArtifacts", ""),
    }
    times = {text: found[key] for text, key in _TIMES.items() if key in found}
    return rows | {text: f"{at:%Y-%m-%d %H:%M:%S %Z}".rstrip() for text, at in times.items()}


def _hosts(resources: dict[str, object]) -> str:
    groups = resources.get("InstanceGroups") or [resources]
    assert isinstance(groups, list), "DescribeTrainingJob returns a list"
    return ", ".join(f"{each['InstanceCount']} x {each['InstanceType']}" for each in groups)
