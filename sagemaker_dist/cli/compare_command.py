# SPDX-License-Identifier: Apache-2.0
"""The command `sagemaker-dist compare`, which shows whether a plan holds."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Final

import click

from sagemaker_dist.cli.shared_options import FILE, json_option
from sagemaker_dist.cli.split import run_in_runtime

_MODULE: Final = "smdist.modelparallel.compare"


@click.command()
@click.argument("plan", type=FILE)
@click.argument("trace", type=FILE)
@json_option
@click.option("--python", metavar="FILE", help="Interpreter with the runtime. Default: this one.")
def compare(plan: Path, trace: Path, as_json: bool, python: str | None) -> int:
    """Compare what PLAN predicts with what TRACE recorded, by part, and say what to change.

    PLAN is a file of `sagemaker-dist plan model.py --save`, and TRACE a recorded run with this
    plan, which model.traced() writes.
    """
    command = [python or sys.executable, "-m", _MODULE, *(["--json"] if as_json else [])]
    return run_in_runtime([*command, "--", str(plan), str(trace)])
