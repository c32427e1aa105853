# SPDX-License-Identifier: Apache-2.0
"""Measurement of this machine, from its command line to the exit status.

The exit status is 0 for success, 1 if this machine lacks something, 2 if the request is wrong, 130
after an interrupt by Ctrl-C, and 143 after SIGTERM. Nothing is left behind but the result.
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final, NoReturn

from sagemaker_dist.errors import DistError, OptionError, SetupError, raise_all
from smdist.modelparallel.core.calibration import calibration_file
from smdist.modelparallel.core.plan_errors import PlanError

PREFIX: Final = "planner: "  # the program that starts this one replaces it
_INTERRUPTED, _TERMINATED = 130, 143
_LEAST_SECONDS, _MOST_SECONDS = 1.0, 600.0


def main(command_line: Sequence[str] | None = None) -> int:
    """Measure this machine, write the file, print the table, and return the exit status.

    Args:
        command_line: Arguments without the program's name; None for the arguments of this process.
    """
    parser = argparse.ArgumentParser(prog="sagemaker-dist calibrate", allow_abbrev=False)
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--channel", type=Path)
    parser.add_argument("--seconds", type=float, default=25.0)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args(command_line)
    signal.signal(signal.SIGTERM, _terminate)
    try:
        _run(arguments)
    except DistError as error:
        if arguments.json:
            sys.stdout.write(json.dumps({"error": error.as_dict()}, indent=2) + "\n")
        _say(str(error))
        return 2 if isinstance(error, OptionError) else 1
    except KeyboardInterrupt:
        _say("interrupted")
        return _INTERRUPTED
    return 0


def _run(arguments: argparse.Namespace) -> None:
    raise_all(_faults(arguments))
    from smdist.modelparallel.calibrate.measure_all import measure_all
    from smdist.modelparallel.calibrate.report import report

    try:
        found = measure_all(
            arguments.seconds, arguments.channel, lambda part: _say(f"measuring {part}")
        )
    except OSError as error:
        hint = "Free space in the temporary folder, or set TMPDIR to another one"
        raise SetupError("files cannot be measured", str(error), hint) from error
    calibration_file.save(found, arguments.output)
    if found.disturbance is not None and found.disturbance.is_large:
        _say(
            f"warning: {found.disturbance}. Plans that take this file have wider ranges: measure"
            " again while nothing else runs, or for longer (--seconds)"
        )
    if arguments.json:
        sys.stdout.write(json.dumps(calibration_file.document(found), indent=2) + "\n")
    else:
        sys.stdout.write(report(found) + f"\nwritten to {arguments.output}\n")


def _faults(arguments: argparse.Namespace) -> list[OptionError]:
    """Return an error for each wrong argument, before the measurement begins."""
    from smdist.modelparallel.calibrate.folders import check_channel

    faults: list[OptionError] = []
    output, seconds = arguments.output, arguments.seconds
    if output.is_dir() or not output.parent.is_dir():
        why = "it is a folder" if output.is_dir() else f"the folder {output.parent} does not exist"
        hint = "Pass the path of a file in a folder that exists"
        faults.append(PlanError(f"{output} cannot be written", why, hint, about="output"))
    if not _LEAST_SECONDS <= seconds <= _MOST_SECONDS:  # NaN is not in this range either
        what, why = f"--seconds is {seconds:g}", "it is the time for all measurements"
        hint = f"Pass a number from {_LEAST_SECONDS:g} to {_MOST_SECONDS:g}"
        faults.append(OptionError(what, why, hint, about="seconds"))
    if arguments.channel is not None:
        try:
            check_channel(arguments.channel)
        except OptionError as error:
            faults.append(error)
    return faults


def _terminate(*_: object) -> NoReturn:
    """End this process after the blocks that clean up; a second signal does not disturb them."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    sys.exit(_TERMINATED)


def _say(line: str) -> None:
    sys.stderr.write(f"{PREFIX}{line}\n")
    sys.stderr.flush()
