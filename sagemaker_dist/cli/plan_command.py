# SPDX-License-Identifier: Apache-2.0
"""The command `sagemaker-dist plan`, which shows what a job would run, or how a model is split."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import click
from click.core import ParameterSource
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from sagemaker_dist.cli import screen
from sagemaker_dist.cli.dry_run_session import DryRunSession, placeholders
from sagemaker_dist.cli.hosts import Hosts, counted, hosts_of, total_ranks
from sagemaker_dist.cli.iam_policy import Permission, caller_permissions
from sagemaker_dist.cli.instances_command import instance_rows
from sagemaker_dist.cli.shared_options import aws_options, job_options, json_option
from sagemaker_dist.cli.split import MODEL_OPTIONS, model_options, plan_split, split_options
from sagemaker_dist.contract.option_variables import with_variables
from sagemaker_dist.contract.redaction import masked, without_login
from sagemaker_dist.errors import OptionError, raise_all
from sagemaker_dist.jobs import TrainingJob
from sagemaker_dist.jobs.job_checks import distribution_of_job, is_local
from sagemaker_dist.jobs.job_file import read_job_file
from sagemaker_dist.packaging import boto_session
from sagemaker_dist.planning.split_checks import describe_split


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Description of a job that is not started: request, hosts and permissions.

    Attributes:
        request: Arguments of CreateTrainingJob.
        hosts: Hosts, one entry per instance type and group.
        permissions: Permissions that the user needs to submit the job.
    """

    job: TrainingJob
    request: Mapping[str, Any]
    hosts: list[Hosts]
    permissions: list[Permission]

    @property
    def split(self) -> dict[str, str]:
        """Return how model parallelism divides ranks and batch: pairs of a label and a text.

        The dict is empty for a job without model parallelism.
        """
        model = distribution_of_job(self.job).model
        return {} if model is None else describe_split(model, total_ranks(self.hosts))

    def document(self) -> dict[str, Any]:
        """Return the plan as a dict that can be written as JSON."""
        return {
            "request": self.request,
            "placeholders": placeholders(json.dumps(self.request, ensure_ascii=False)),
            "hosts": [each.document() for each in self.hosts],
            "ranks": total_ranks(self.hosts),
            "split": self.split,
            "warnings": self.job.warnings(),
            "cost_limit": self.job.cost_limit,
            "permissions": [
                {"actions": each.actions, "resources": each.resources, "why": each.why}
                for each in self.permissions
            ],
        }


_JOB_OPTIONS: Final = frozenset({"settings", "ask", "as_request", "region", "profile"})


class _Command(click.Command):
    """Command whose --help lists the options of job files and of models separately."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the options in sections: general, for job files, for models."""
        titles = dict.fromkeys(_JOB_OPTIONS, "Options for job files") | dict.fromkeys(
            MODEL_OPTIONS, "Options for models"
        )
        sections: dict[str, list[tuple[str, str]]] = {"Options": [], "Options for job files": []}
        for each in self.get_params(ctx):
            record = each.get_help_record(ctx)
            if record is not None:
                sections.setdefault(titles.get(each.name or "", "Options"), []).append(record)
        for title, records in sections.items():
            with formatter.section(title):
                formatter.write_dl(records)


@click.command(cls=_Command)
@job_options
@click.option("--ask", is_flag=True, help="Call AWS to fill in placeholders such as <account>.")
@click.option("--request", "as_request", is_flag=True, help="Print only the request, as JSON.")
@json_option
@aws_options
@model_options
@click.pass_context
def plan(context: click.Context, /, *, file: Path, **values: Any) -> int:
    """Show what the job of FILE would run, or how the model of FILE would be split.

    For a job file, such as job.toml, shows the request, hosts and ranks, data and warnings. Nothing
    starts. AWS is not called, and values that only AWS has are shown as placeholders.

    For a model file, such as model.py, shows which modules go to which rank of the instances, and
    the time and memory of a step. The file has the functions model() and example(); example()
    returns the batch of one replica. No weights are allocated unless --measure is given.
    """
    is_model = file.suffix == ".py"
    raise_all(_misplaced(context, file, is_model=is_model))
    others = _JOB_OPTIONS if is_model else MODEL_OPTIONS
    own = {name: value for name, value in values.items() if name not in others}
    return plan_split(split_options(file, own)) if is_model else _plan_job(file, **own)


def _misplaced(context: click.Context, file: Path, *, is_model: bool) -> Iterator[OptionError]:
    """Yield an error for each given option that does not apply to this kind of file.

    With `is_model`, `file` is a model (Python), and options for job files do not apply. Else it is
    a job file (TOML), and options for models do not apply.
    """
    others = _JOB_OPTIONS if is_model else MODEL_OPTIONS
    kinds = ("a model", "job files") if is_model else ("not a model", "models, such as model.py")
    for option in context.command.params:
        is_given = context.get_parameter_source(option.name or "") is ParameterSource.COMMANDLINE
        if option.name in others and is_given:
            what = f"{option.opts[0]} is given, but {file} is {kinds[0]}"
            yield OptionError(what, f"the option is for {kinds[1]}", f"Leave {option.opts[0]} out")


def _plan_job(
    file: Path, *, settings: tuple[str, ...], ask: bool, as_request: bool, as_json: bool,
    region: str | None, profile: str | None,
) -> int:  # fmt: skip
    aws = boto_session(region, profile)
    session = aws if ask else DryRunSession(region=aws.region_name)
    found = planned(read_job_file(file, settings).job(session=session))
    if as_request:
        screen.print_json(found.request)
    elif as_json:
        screen.print_json(found.document())
    else:
        _show(found)
    return 0


def planned(job: TrainingJob) -> Plan:
    """Return the plan of a job, without starting the job.

    AWS is called only if the job's session is a boto3.Session. A DryRunSession gives placeholders
    instead.
    """
    request = job.request()
    region = getattr(job.session, "region_name", None) or ""
    return Plan(
        job=job,
        request=request,
        hosts=hosts_of(job),
        permissions=caller_permissions(job, request, str(region)),
    )


def _show(plan: Plan) -> None:
    screen.facts(_rows(plan))
    for hosts in plan.hosts:
        screen.line()
        screen.heading(" ".join(filter(None, [hosts.group, hosts.type])))
        screen.facts(_host_rows(hosts), indent=2)
    _show_channels(plan.request)
    _show_list("Hyperparameters", _redacted(plan.job.hyperparameters))
    _show_list("Environment", _redacted(plan.job.environment))
    _show_permissions(plan.permissions)
    _show_list("Placeholders", placeholders(json.dumps(plan.request, ensure_ascii=False)))
    for number, warning in enumerate(plan.job.warnings()):
        if number == 0:
            screen.line()
            screen.heading("Warnings")
        screen.paragraph(warning, indent=2, style="yellow")


def _rows(plan: Plan) -> Iterator[tuple[str, str]]:
    request, ranks = plan.request, total_ranks(plan.hosts)
    every = " + ".join(each.text() for each in plan.hosts)
    script = plan.job.entry_point
    yield "name", request["TrainingJobName"]
    yield "ranks", f"{every} = {ranks}" if ranks else every
    yield from plan.split.items()
    yield "image", request["AlgorithmSpecification"]["TrainingImage"]
    yield "script", "the image's own program" if script is None else str(script)
    if not is_local(plan.job):
        yield "role", request["RoleArn"]
    yield "model", request["OutputDataConfig"]["S3OutputPath"] or "the job's folder"
    stop = request["StoppingCondition"]
    spot = ", on Spot instances" if request.get("EnableManagedSpotTraining") else ""
    yield "at most", f"{_duration(stop['MaxRuntimeInSeconds'])}{spot}"
    if plan.job.cost_limit:
        yield "cost", plan.job.cost_limit
    if protection := _protection(plan.job):
        yield "protection", protection
    if "VpcConfig" in request:
        vpc = request["VpcConfig"]
        yield "network", ", ".join([*vpc["Subnets"], *vpc["SecurityGroupIds"]])


def _protection(job: TrainingJob) -> str:
    """Return what protects the connections between hosts; "" for a job without our engine."""
    options = distribution_of_job(job).engine
    if options is None:
        return ""
    options = with_variables(options, {name: str(each) for name, each in job.environment.items()})
    given = f"integrity={options.integrity!r}, encrypt={options.encrypt}"
    if job.has_secret:
        return f"{given}; ranks prove that they know the job's secret"
    return f"{given}; no secret is uploaded, because no code is"


def _host_rows(hosts: Hosts) -> dict[str, str]:
    if hosts.instance is None:
        return {"hosts": counted(hosts.count, "host"), "facts": "this machine's"}
    facts = instance_rows(hosts.instance)
    facts.pop("type")
    memory = hosts.instance.total_accelerator_memory_gib
    if memory and hosts.count > 1:
        facts["accelerators"] += f"; {memory * hosts.count:,g} GiB in all hosts"
    return {"hosts": counted(hosts.count, "host"), **facts}


def _show_channels(request: Mapping[str, Any]) -> None:
    channels, mode = request.get("InputDataConfig"), request["AlgorithmSpecification"]
    if not channels:
        return
    table = Table(box=None, pad_edge=False, header_style="dim", padding=(0, 2, 0, 0))
    for name in ("channel", "mode", "data"):
        table.add_column(name, overflow="fold", no_wrap=name != "data")
    for each in channels:
        place, how = _place(each["DataSource"])
        is_mounted = "FileSystemDataSource" in each["DataSource"]
        input_mode = "" if is_mounted else each.get("InputMode", mode["TrainingInputMode"])
        table.add_row(*map(Text, (each["ChannelName"], input_mode, f"{place}{how}")))
    screen.line()
    screen.heading("Data")
    screen.show(Padding(table, (0, 0, 0, 2)))


def _place(source: dict[str, Any]) -> tuple[str, str]:
    kind, part = next(iter(source.items()))
    if kind == "FileSystemDataSource":
        place = f"{part['FileSystemId']}{part['DirectoryPath']}"
        return place, f", {part['FileSystemType']}, {part['FileSystemAccessMode']}"
    split = "ShardedByS3Key" in part.values()
    return part.get("S3Uri") or part["FileUri"], ", divided among hosts" if split else ""


def _show_list(title: str, values: Mapping[str, Any]) -> None:
    if values:
        screen.line()
        screen.heading(title)
        rows = {name: str(value) for name, value in values.items()}
        screen.facts(rows, indent=2)


def _redacted(values: Mapping[str, Any]) -> dict[str, str]:
    """Return the values as text, with passwords and other secrets replaced."""
    return {
        str(name): without_login(str(masked(str(name), value))) for name, value in values.items()
    }


def _show_permissions(permissions: list[Permission]) -> None:
    _show_list(
        "AWS calls",
        {each.id.lower(): f"{', '.join(each.actions)}: {each.why}" for each in permissions},
    )


def _duration(seconds: int) -> str:
    minutes, rest = divmod(seconds, 60)
    hours, minutes = divmod(minutes, 60)
    parts = [(hours, "hour"), (minutes, "minute"), (rest, "second")]
    return " ".join(counted(number, unit) for number, unit in parts if number)
