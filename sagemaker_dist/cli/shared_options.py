# SPDX-License-Identifier: Apache-2.0
"""Options that several commands have, and the shell completion of their values."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeVar

import click

_Command = TypeVar("_Command", bound=Callable[..., Any])

FILE: Final = click.Path(path_type=Path)


@dataclass(slots=True)
class OutputFormat:
    """Output format of the current command, for results and errors: JSON or text."""

    is_json: bool = False


def _remember(ctx: click.Context, _: click.Parameter, is_json: bool) -> bool:
    output = ctx.find_object(OutputFormat)
    if output is not None:
        output.is_json = is_json
    return is_json


json_option = click.option(
    "--json",
    "as_json",
    is_flag=True,
    is_eager=True,
    callback=_remember,
    help="Print JSON, for programs; for an error, its fields.",
)


def aws_options(command: _Command) -> _Command:
    """Return a command with the options --region and --profile added."""
    region = click.option(
        "--region", metavar="NAME", help="AWS region. Default: AWS's own settings."
    )
    profile = click.option("--profile", metavar="NAME", help="Profile of AWS credentials.")
    return region(profile(command))


def job_options(command: _Command) -> _Command:
    """Return a command with the argument FILE and the option --set added."""
    return click.argument("file", type=FILE)(set_option(command))


def set_option(command: _Command) -> _Command:
    """Return a command with the option --set added."""
    return click.option(
        "--set",
        "settings",
        multiple=True,
        metavar="KEY=VALUE",
        shell_complete=_complete_key,
        help="Change a value of FILE, such as hyperparameters.lr=0.1. May be repeated.",
    )(command)


def _complete_key(_: click.Context, __: click.Parameter, typed: str) -> list[str]:
    from sagemaker_dist.jobs.job_file import job_schema

    return [f"{name}=" for name in job_schema()["properties"] if name.startswith(typed)]


def complete_job(_: click.Context, __: click.Parameter, typed: str) -> list[str]:
    """Return the names of this machine's jobs that begin with `typed`, for shell completion."""
    from sagemaker_dist.runners import LocalRunner

    root = LocalRunner().root
    return sorted(each.name for each in root.glob("*") if each.name.startswith(typed))


def complete_type(_: click.Context, __: click.Parameter, typed: str) -> list[str]:
    """Return the instance types that begin with `typed`, for shell completion."""
    from sagemaker_dist.catalog import training_instances

    return sorted(name for name in training_instances() if name.startswith(typed))
