# SPDX-License-Identifier: Apache-2.0
"""The command `sagemaker-dist calibrate`, which measures this machine for plans."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Final

import click

from sagemaker_dist.cli.shared_options import FILE, json_option
from sagemaker_dist.cli.split import run_in_runtime

_MODULE: Final = "smdist.modelparallel.calibrate"


@click.command()
@click.option(
    "-o",
    "--output",
    type=FILE,
    metavar="FILE",
    default=Path("calibration.json"),
    help="File to write. Default: calibration.json.",
)
@click.option(
    "--channel",
    type=FILE,
    metavar="FOLDER",
    help="Folder of a channel (S3, FSx) whose files are read, too.",
)
@click.option(
    "--seconds",
    type=float,
    default=25.0,
    metavar="N",
    help="Time for all measurements, from 1 to 600. Default: 25.",
)
@json_option
@click.option(
    "--python", metavar="FILE", help="Interpreter with torch and the runtime. Default: this one."
)
def calibrate(
    output: Path, channel: Path | None, seconds: float, as_json: bool, python: str | None
) -> int:
    """Measure this machine, in under a minute, and write its speeds to a file.

    Measured are matrix products by type and size, memory, all-reduces and messages between
    processes, and files. `sagemaker-dist plan model.py --calibration FILE` uses the speeds.
    """
    command = [python or sys.executable, "-m", _MODULE, f"--output={output}"]
    command += [f"--seconds={seconds}", *(["--json"] if as_json else [])]
    return run_in_runtime(command + ([f"--channel={channel}"] if channel is not None else []))
