# SPDX-License-Identifier: Apache-2.0
"""What `plan model.py` can be told; what is for the planner alone goes on to it as it was said."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeVar

import click

from sagemaker_dist.cli.options import FILE, complete_type

_Command = TypeVar("_Command", bound=Callable[..., Any])
_COUNT: Final = click.IntRange(min=1)
_N: Final = "N"

# What the planner checks; it knows what is valid.
_CONSTRAINTS: Final = (
    (
        "device_memory",
        "SIZE",
        "Of a rank, such as 16GiB or 16GB. Default: nine tenths of the type's.",
    ),
    ("device_flops", "NUMBER", "Operations a second of a rank, such as 312e12."),
    ("microbatches", _N, "Parts of a batch, or auto (the default)."),
    ("pipeline_parallel_degree", _N, "Ranks of one pipeline, or auto (the default)."),
    ("data_parallel_degree", _N, "Pipelines beside each other, or auto (the default)."),
    ("pipeline", "NAME", "The schedule, such as interleaved or 1f1b, or auto (the default)."),
    ("active_microbatches", _N, "Under way at once, of the schedule interleaved."),
    ("virtual_stages", _N, "Stages of each rank."),
    ("optimize", "speed|memory", "What balance is about."),
    ("memory_weight", "0..1", "The same, by degrees."),
    ("state_bytes", "W,G,O", "Bytes of weight, gradient, optimizer an element. Default: 4,4,8."),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class SplitOptions:
    """How a model is to be split.

    Attributes:
        python: The interpreter whose environment has the runtime and the framework.
        measure: Costs are measured here and not estimated for the instance type.
        constraints: Options of the planner and their values, as they were said.
    """

    file: Path
    instance_type: str | None
    instance_count: int
    ranks_per_host: int | None
    python: str | None
    measure: bool
    save: Path | None
    plot: Path | None
    as_json: bool
    constraints: tuple[tuple[str, str], ...]


def model_options(command: _Command) -> _Command:
    """All of them, below each other in --help, in this order."""
    for option in reversed(list(_options())):
        command = option(command)
    return command


def _options() -> Iterator[Callable[[Any], Any]]:
    yield click.option(
        "--instance-type",
        metavar="NAME",
        shell_complete=complete_type,
        help="What it is split over, such as ml.p4d.24xlarge or local_process.",
    )
    yield click.option("--instance-count", type=_COUNT, default=1, metavar=_N, help="Default: 1.")
    yield click.option(
        "--ranks-per-host", type=_COUNT, metavar=_N, help="Default: one a GPU, or one."
    )
    for name, metavar, text in _CONSTRAINTS:
        yield click.option(_flag(name), metavar=metavar, help=text)
    yield click.option(
        "--measure", is_flag=True, help="Build the model here, and measure what its parts take."
    )
    yield click.option("--save", type=FILE, metavar="FILE", help="Write the plan, to be edited.")
    yield click.option("--plot", type=FILE, metavar="FILE", help="Draw it: .png, .svg or .pdf.")
    yield click.option(
        "--python", metavar="FILE", help="An interpreter with torch and the runtime. Default: this."
    )


def split_options(file: Path, values: dict[str, Any]) -> SplitOptions:
    """From what click read."""
    names = [name for name, _, _ in _CONSTRAINTS]
    said = tuple((_flag(name), values.pop(name)) for name in names)
    constraints = tuple((flag, value) for flag, value in said if value is not None)
    return SplitOptions(file=file, constraints=constraints, **values)


def _flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"


MODEL_OPTIONS: Final = frozenset(
    {
        *(name for name, _, _ in _CONSTRAINTS),
        *("instance_type", "instance_count", "ranks_per_host"),
        *("measure", "save", "plot", "python"),
    }
)
