# SPDX-License-Identifier: Apache-2.0
"""Asks the runtime's planner, in a process of its own, and passes on what it says."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterable, Sequence
from typing import Final

from sagemaker_dist.cli import screen
from sagemaker_dist.cli.split.cluster import cluster_of, in_words
from sagemaker_dist.cli.split.options import SplitOptions
from sagemaker_dist.errors import JobError, OptionError, SetupError

_MODULE: Final = "smdist.modelparallel.planner"
_LACKS: Final = re.compile(r"No module named '?smdist(?P<part>[.\w]*)'?")
_SPEAKER: Final = "planner: "  # how the planner's errors begin
_OURS: Final = "sagemaker-dist: "
_TYPED: Final = "sagemaker-dist plan"


def plan_split(options: SplitOptions) -> int:
    """Plan for instances, and return the planner's exit status.

    Raises:
        OptionError: The instance type is missing, unknown, or has no GPUs but other accelerators.
        SetupError: There is no such interpreter, or it has no runtime.
        JobError: The planner was killed.
    """
    if options.instance_type is None:
        raise OptionError(
            "--instance-type is missing",
            f"{options.file} is a model, and how it is split follows from what it is split over",
            "Pass one, such as --instance-type ml.p4d.24xlarge, or local_process",
        )
    cluster = cluster_of(
        options.instance_type,
        num_hosts=options.instance_count,
        ranks_per_host=options.ranks_per_host,
    )
    screen.note(in_words(cluster))
    said = {flag for flag, _ in options.constraints}
    unknown = cluster.device.flops_per_second is None and not options.measure
    if unknown and "--device-flops" not in said:
        screen.note(
            f"how fast {cluster.device.name} is, is not known here: the balance holds, times are"
            " those of a device of the planner's own; --device-flops says it"
        )
    return _run(planner_command(options, json.dumps(cluster.document())))


def planner_command(options: SplitOptions, cluster: str) -> list[str]:
    """The command line of the planner."""
    command = [options.python or sys.executable, "-m", _MODULE, str(options.file)]
    command += [f"--program={_TYPED}", "--cluster", cluster]
    for flag, value in options.constraints:
        command.append(f"{flag}={value}")
    flags = {"--measure": options.measure, "--json": options.as_json}
    command += [flag for flag, is_on in flags.items() if is_on]
    files = {"--save": options.save, "--plot": options.plot}
    return command + [f"{flag}={path}" for flag, path in files.items() if path is not None]


def _run(command: Sequence[str]) -> int:
    try:
        process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, errors="replace")
    except OSError as error:
        mend = "Pass --python with an interpreter that has torch and the runtime"
        raise SetupError(f"{command[0]} cannot be run", str(error), mend) from error
    with process:
        assert process.stderr is not None
        try:
            lacks = _passed_on(process.stderr)
        except BaseException:  # Ctrl-C and SIGTERM: nothing is left behind
            process.terminate()
            raise
    if lacks is not None:
        raise SetupError(
            f"{command[0]} has no {_MODULE}",
            f"Python says {lacks!r}",
            "Beside torch 2.13, in a clone, run: pip install ./container",
        )
    if process.returncode < 0:
        raise JobError(
            f"the planner was killed by signal {-process.returncode}",
            "signal 9 is what Linux sends where memory runs out",
            "Leave --measure out: models are then planned without their weights",
        )
    return process.returncode


def _passed_on(lines: Iterable[str]) -> str | None:
    """Pass on what the planner says; return what Python says where there is none."""
    lacks = None
    for line in lines:
        found = _LACKS.search(line)
        if found and not line.startswith(_SPEAKER):
            lacks = found[0]
        else:
            ours = line.startswith(_SPEAKER)
            sys.stderr.write(_OURS + line.removeprefix(_SPEAKER) if ours else line)
            sys.stderr.flush()
    return lacks
