# SPDX-License-Identifier: Apache-2.0
"""Options that several commands have."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, TypeVar

import click

_Command = TypeVar("_Command", bound=Callable[..., Any])

FILE: Final = click.Path(path_type=Path)

json_option = click.option("--json", "as_json", is_flag=True, help="For programs.")


def aws_options(command: _Command) -> _Command:
    """--region and --profile."""
    region = click.option("--region", metavar="NAME", help="Default: AWS's own settings.")
    profile = click.option("--profile", metavar="NAME", help="Of AWS credentials.")
    return region(profile(command))


def job_options(command: _Command) -> _Command:
    """FILE and --set."""
    return click.argument("file", type=FILE)(set_option(command))


def set_option(command: _Command) -> _Command:
    """--set."""
    return click.option(
        "--set",
        "settings",
        multiple=True,
        metavar="KEY=VALUE",
        shell_complete=_complete_key,
        help="Instead of what FILE says, such as hyperparameters.lr=0.1. May be repeated.",
    )(command)


def _complete_key(_: click.Context, __: click.Parameter, typed: str) -> list[str]:
    from sagemaker_dist.jobs.job_file import job_schema

    return [f"{name}=" for name in job_schema()["properties"] if name.startswith(typed)]


def complete_job(_: click.Context, __: click.Parameter, typed: str) -> list[str]:
    """Names of this machine's jobs."""
    from sagemaker_dist.runners import LocalRunner

    root = LocalRunner().root
    return sorted(each.name for each in root.glob("*") if each.name.startswith(typed))


def complete_type(_: click.Context, __: click.Parameter, typed: str) -> list[str]:
    """Instance types."""
    from sagemaker_dist.catalog import training_instances

    return sorted(name for name in training_instances() if name.startswith(typed))
