# SPDX-License-Identifier: Apache-2.0
"""Table of the commands; the module of a command is imported when the command is called."""

from __future__ import annotations

from importlib import import_module
from typing import Final

import click

_COMMANDS: Final = {  # name -> module, object, one line of help
    "plan": ("plan_command", "plan", "Show what a job file would run, or how a model is split."),
    "calibrate": ("calibrate_command", "calibrate", "Measure this machine for plans."),
    "compare": ("compare_command", "compare", "Compare a plan with a recorded run."),
    "advise": ("advise_command", "advise", "Compare instance types for a model: time and price."),
    "submit": ("job_commands", "submit", "Start the job of a job file."),
    "local": ("local", "local", "Run the job of a job file on this machine."),
    "logs": ("job_commands", "logs", "Print the output of a job's hosts."),
    "describe": ("job_commands", "describe", "Show the state of a job."),
    "stop": ("job_commands", "stop", "Stop a job."),
    "debug": ("debug_command", "debug", "Show where the ranks of a job are and differ."),
    "doctor": ("doctor", "doctor", "Check whether this machine and account can run a job."),
    "image": ("image", "image", "Build, push and inspect training images."),
    "instances": ("instances_command", "instances", "Show facts about instance types."),
    "schema": ("schema_command", "schema", "Print the JSON Schema of job files."),
    "completion": ("completion", "completion", "Print a shell's completion script."),
}


class _Lazy(click.Group):
    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's
        return list(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        if cmd_name not in _COMMANDS:
            return None
        module, name, _ = _COMMANDS[cmd_name]
        command = getattr(import_module(f"sagemaker_dist.cli.{module}"), name)
        assert isinstance(command, click.Command), "the table names commands"
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, _, text) in _COMMANDS.items()])


@click.group(cls=_Lazy, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="sagemaker-dist", message="%(version)s")
def root() -> None:
    """Distributed training on SageMaker; the same job can run on this machine first.

    A file such as job.toml describes a job. `sagemaker-dist COMMAND --help` lists the options of a
    command.
    """
