# SPDX-License-Identifier: Apache-2.0
"""Comparison of two files, from the command line to the exit status.

The exit status is 0 for success, 2 if a file is wrong, and 130 after an interrupt by Ctrl-C.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final, TypeVar

from sagemaker_dist.errors import OptionError
from smdist.modelparallel.core.comparison import Comparison, compare_plan, comparison_text
from smdist.modelparallel.core.placement import Edge
from smdist.modelparallel.core.plan import Plan, plan_file
from smdist.modelparallel.core.plan_errors import PlanError, raise_faults
from smdist.modelparallel.core.record import Track, read_trace

PREFIX: Final = "planner: "  # the program that starts this one replaces it
_USAGE, _INTERRUPTED = 2, 130
_Read = TypeVar("_Read")


def main(command_line: Sequence[str] | None = None) -> int:
    """Compare a plan with a trace, print the table, and return the exit status.

    Args:
        command_line: Arguments without the program's name; None for the arguments of this process.
    """
    parser = argparse.ArgumentParser(prog="sagemaker-dist compare", allow_abbrev=False)
    parser.add_argument("plan", type=Path)
    parser.add_argument("trace", type=Path)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args(command_line)
    try:
        found = compare_files(arguments.plan, arguments.trace)
    except OptionError as error:
        if arguments.json:
            sys.stdout.write(json.dumps({"error": error.as_dict()}, indent=2) + "\n")
        sys.stderr.write(f"{PREFIX}{error}\n")
        return _USAGE
    except KeyboardInterrupt:
        sys.stderr.write(f"{PREFIX}interrupted\n")
        return _INTERRUPTED
    title = f"{arguments.plan} beside {arguments.trace}"
    if arguments.json:
        sys.stdout.write(json.dumps(found.document(), indent=2) + "\n")
    else:
        sys.stdout.write(comparison_text(found, title=title))
    return 0


def compare_files(plan_path: Path, trace_path: Path) -> Comparison:
    """Compare the plan and the trace in two files.

    Raises:
        PlanError: Files cannot be read or are wrong; the faults of both are reported at once.
    """
    faults: list[OptionError] = []
    plan = _read(lambda: Plan.load(plan_path), faults)
    trace = _read(lambda: _load_trace(trace_path), faults)
    if plan is None and trace is None and _are_swapped(plan_path, trace_path):
        raise PlanError(
            f"{plan_path} is a trace, and {trace_path} is a plan",
            "the plan comes first",
            f"Run sagemaker-dist compare {trace_path} {plan_path}",
            about="plan",
            kind="mismatch",
        )
    raise_faults(faults)
    assert plan is not None
    assert trace is not None
    return compare_plan(plan, *trace)


def _are_swapped(plan_path: Path, trace_path: Path) -> bool:
    """Return True if the file of the plan is a trace, and that of the trace a plan."""
    faults: list[OptionError] = []
    _read(lambda: Plan.load(trace_path), faults)
    _read(lambda: _load_trace(plan_path), faults)
    return not faults


def _load_trace(path: Path) -> tuple[tuple[Track, ...], tuple[Edge, ...]]:
    """Return the events and edges of a trace.

    Raises:
        PlanError: The file cannot be read, or is not a trace of this project.
    """
    try:
        found = plan_file.read(path)
    except OptionError as error:
        why = error.why.replace("a plan", "a trace")
        hint = "Pass a trace that trace.gather().save(path) wrote"
        raise PlanError(error.what, why, hint, about="trace", kind=error.kind) from error
    return read_trace(found, where=str(path))


def _read(load: Callable[[], _Read], faults: list[OptionError]) -> _Read | None:
    """Return what a function loads; append its error to the faults and return None if it fails."""
    try:
        return load()
    except OptionError as error:
        faults.append(error)
        return None
