# SPDX-License-Identifier: Apache-2.0
"""The runtime's planner, run in a process of its own, whose output is shown to the user."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterable, Sequence
from typing import Final

from sagemaker_dist.cli import screen
from sagemaker_dist.cli.split.cluster import cluster_of, describe_cluster
from sagemaker_dist.cli.split.split_options import SplitOptions
from sagemaker_dist.errors import JobError, OptionError, SetupError

_PLANNER: Final = "smdist.modelparallel.planner"
_LACKS: Final = re.compile(r"No module named '?smdist(?P<part>[.\w]*)'?")
_PLANNER_PREFIX: Final = "planner: "  # prefix of the planner's errors
_OWN_PREFIX: Final = "sagemaker-dist: "
_PROGRAM: Final = "sagemaker-dist plan"


def plan_split(options: SplitOptions) -> int:
    """Run the planner for the model in `options.file`, and return the planner's exit status.

    The planner prints how the model is split over instances.

    Raises:
        OptionError: The instance type is missing, unknown, or has accelerators other than GPUs.
        SetupError: The interpreter does not exist, or lacks the package smdist.
        JobError: The planner was killed.
    """
    if options.instance_type is None:
        raise OptionError(
            "--instance-type is missing",
            f"{options.file} is a model, and its plan depends on the instance type",
            "Pass one, such as --instance-type ml.p4d.24xlarge, or local_process",
        )
    cluster = cluster_of(
        options.instance_type,
        num_hosts=options.instance_count,
        ranks_per_host=options.ranks_per_host,
    )
    screen.note(describe_cluster(cluster))
    given = {flag for flag, _ in options.constraints}
    is_calibrated = options.measure or options.calibration is not None
    unknown = cluster.device.flops_per_second is None and not is_calibrated
    if unknown and "--device-flops" not in given:
        screen.note(
            f"the speed of {cluster.device.name} is unknown: the balance of stages is right, but"
            " times are for the planner's default device; pass --device-flops for its speed"
        )
    return run_in_runtime(planner_command(options, json.dumps(cluster.document())))


def planner_command(options: SplitOptions, cluster: str) -> list[str]:
    """Return the command line of the planner; `cluster` is the JSON for its option --cluster."""
    command = [options.python or sys.executable, "-m", _PLANNER, str(options.file)]
    command += [f"--program={_PROGRAM}", "--cluster", cluster]
    for flag, value in options.constraints:
        command.append(f"{flag}={value}")
    flags = {"--measure": options.measure, "--json": options.as_json}
    command += [flag for flag, is_on in flags.items() if is_on]
    files = {"--save": options.save, "--plot": options.plot, "--calibration": options.calibration}
    return command + [f"{flag}={path}" for flag, path in files.items() if path is not None]


def run_in_runtime(command: Sequence[str]) -> int:
    """Run a module of the runtime in another process, and return its exit status.

    Its output is passed on. Ctrl-C and SIGTERM end it, too.

    Args:
        command: Interpreter, "-m", the module, and its arguments.

    Raises:
        SetupError: The interpreter does not exist, or lacks the package smdist.
        JobError: The process was killed.
    """
    module = command[2]
    try:
        process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, errors="replace")
    except OSError as error:
        hint = "Pass --python with an interpreter that has torch and smdist"
        raise SetupError(f"{command[0]} cannot be run", str(error), hint) from error
    with process:
        assert process.stderr is not None
        try:
            missing, has_spoken = _pass_on(process.stderr)
        except BaseException:  # Ctrl-C and SIGTERM: end the planner too
            process.terminate()
            raise
    if missing is not None:
        raise SetupError(
            f"{command[0]} has no {module}",
            f"Python reports {missing!r}",
            "With torch 2.13 installed, run in a clone of the project: pip install ./container",
        )
    if process.returncode < 0:
        name, hint = f"the process of {module}", "Free memory on this machine, and try again"
        if module == _PLANNER:
            name = "the planner"
            hint = "Leave --measure out: models are then planned without allocating weights"
        why = "Linux sends signal 9 to processes when memory runs out"
        raise JobError(f"{name} was killed by signal {-process.returncode}", why, hint)
    if process.returncode and not has_spoken:
        raise SetupError(
            f"{command[0]} ended with status {process.returncode}",
            f"it was started with -m {module}, and printed nothing",
            "Pass --python with an interpreter that has torch and smdist",
        )
    return process.returncode


def _pass_on(lines: Iterable[str]) -> tuple[str | None, bool]:
    """Copy the planner's error output, `lines`, to this command's standard error.

    Returns:
        Python's message about a missing module if the planner is not installed, else None; and
        True if there was any output.
    """
    missing, has_spoken = None, False
    for line in lines:
        has_spoken = True
        found = _LACKS.search(line)
        if found and not line.startswith(_PLANNER_PREFIX):
            missing = found[0]
        else:
            is_planners = line.startswith(_PLANNER_PREFIX)
            sys.stderr.write(
                _OWN_PREFIX + line.removeprefix(_PLANNER_PREFIX) if is_planners else line
            )
            sys.stderr.flush()
    return missing, has_spoken
