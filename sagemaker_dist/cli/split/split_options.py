# SPDX-License-Identifier: Apache-2.0
"""Options of `sagemaker-dist plan model.py`; most are passed to the planner unchanged."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeVar

import click

from sagemaker_dist.cli.shared_options import FILE, complete_type

_Command = TypeVar("_Command", bound=Callable[..., Any])
_COUNT: Final = click.IntRange(min=1)
_N: Final = "N"

# Options that are passed to the planner, which checks them: name, metavar, help.
_CONSTRAINTS: Final = (
    (
        "device_memory",
        "SIZE",
        "Memory of a rank, such as 16GiB or 16GB. Default: nine tenths of the type's.",
    ),
    ("device_flops", "NUMBER", "Speed of a rank in FLOP/s, such as 312e12."),
    ("microbatches", _N, "Microbatches of a batch, or auto (the default)."),
    ("pipeline_parallel_degree", _N, "Ranks of one pipeline, or auto (the default)."),
    ("data_parallel_degree", _N, "Replicas of the model, or auto (the default)."),
    ("pipeline", "NAME", "The schedule, such as interleaved or 1f1b, or auto (the default)."),
    ("active_microbatches", _N, "Most microbatches in flight on a rank, for interleaved."),
    ("virtual_stages", _N, "Stages of each rank."),
    ("optimize", "speed|memory", "Balance stages by time (speed) or by memory."),
    ("memory_weight", "0..1", "Weight of memory when stages are balanced."),
    (
        "state_bytes",
        "W,G,O",
        "Bytes per parameter of weight, gradient and optimizer state. Default: 4,4,8.",
    ),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class SplitOptions:
    """Options of `sagemaker-dist plan model.py`.

    Attributes:
        file: Python file with the model.
        ranks_per_host: Number of ranks. Default: one per GPU, or one per host without GPUs.
        python: Interpreter whose environment has the runtime and torch. Default: this one.
        measure: Measure costs on this machine instead of estimating them for the instance type.
        save: File for the plan as JSON, or None.
        plot: File for a picture of the plan, or None.
        calibration: File of `sagemaker-dist calibrate` with measured speeds, or None.
        constraints: Other options, as pairs of flag and value, which the planner gets unchanged.
    """

    file: Path
    instance_type: str | None
    instance_count: int
    ranks_per_host: int | None
    python: str | None
    measure: bool
    save: Path | None
    plot: Path | None
    calibration: Path | None
    as_json: bool
    constraints: tuple[tuple[str, str], ...]


def model_options(command: _Command) -> _Command:
    """Add the options for models to the command `plan`, and return the command."""
    for option in reversed(list(_options())):
        command = option(command)
    return command


def _options() -> Iterator[Callable[[Any], Any]]:
    yield click.option(
        "--instance-type",
        metavar="NAME",
        shell_complete=complete_type,
        help="Instances to split over, such as ml.p4d.24xlarge or local_process.",
    )
    yield click.option("--instance-count", type=_COUNT, default=1, metavar=_N, help="Default: 1.")
    yield click.option(
        "--ranks-per-host",
        type=_COUNT,
        metavar=_N,
        help="Default: one per GPU, or one without GPUs.",
    )
    for name, metavar, text in _CONSTRAINTS:
        yield click.option(_flag(name), metavar=metavar, help=text)
    yield click.option(
        "--measure", is_flag=True, help="Build the model here, and measure its parts."
    )
    yield click.option(
        "--save", type=FILE, metavar="FILE", help="Write the plan to a file, which you can edit."
    )
    yield click.option(
        "--plot", type=FILE, metavar="FILE", help="Draw the plan: .png, .svg or .pdf."
    )
    yield click.option(
        "--calibration",
        type=FILE,
        metavar="FILE",
        help="Speeds that sagemaker-dist calibrate measured on such an instance.",
    )
    yield click.option(
        "--python",
        metavar="FILE",
        help="Interpreter with torch and the runtime. Default: this one.",
    )


def split_options(file: Path, values: dict[str, Any]) -> SplitOptions:
    """Return the options of `plan` for the model in `file`.

    `values` are the options that click parsed, by name.
    """
    names = [name for name, _, _ in _CONSTRAINTS]
    flags = tuple((_flag(name), values.pop(name)) for name in names)
    constraints = tuple((flag, value) for flag, value in flags if value is not None)
    return SplitOptions(file=file, constraints=constraints, **values)


def _flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"


MODEL_OPTIONS: Final = frozenset(
    {
        *(name for name, _, _ in _CONSTRAINTS),
        *("instance_type", "instance_count", "ranks_per_host"),
        *("measure", "save", "plot", "calibration", "python"),
    }
)
