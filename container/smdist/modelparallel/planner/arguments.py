# SPDX-License-Identifier: Apache-2.0
"""Command-line arguments of the planner."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

from sagemaker_dist.errors import OptionError

_PROGRAM: Final = "python -m smdist.modelparallel.planner"
AUTO: Final = "auto"


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> Any:
        """Raise OptionError in place of argparse's exit."""
        message = message.removeprefix("argument ")
        raise OptionError(message, f"{self.prog} cannot read it", f"Run {self.prog} --help")


def read_arguments(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Read the command line; --program is the command that help texts name.

    Raises:
        OptionError: An argument is wrong.
    """
    asked = _Parser(add_help=False, allow_abbrev=False)
    asked.add_argument("--program", default=_PROGRAM)
    known, rest = asked.parse_known_args(arguments)
    parser = _Parser(prog=known.program, description=__doc__, allow_abbrev=False)
    parser.description = (
        "Say how a model is split over a cluster. FILE has the functions model() and example(), the"
        ' batch of one replica. model() is called under torch.device("meta"), so that no weights'
        " are made, unless --measure is given."
    )
    parser.add_argument("file", type=Path, metavar="FILE")
    _add_cluster(parser.add_argument_group("what it is split over"))
    _add_constraints(parser.add_argument_group("what is decided already"))
    output = parser.add_argument_group("what comes out")
    output.add_argument("--json", action="store_true", help="the plan as it would be saved")
    output.add_argument("--save", type=Path, metavar="FILE", help="write the plan, to be edited")
    output.add_argument("--plot", type=Path, metavar="FILE", help="draw it: .png, .svg or .pdf")
    return parser.parse_args(rest)


def _add_cluster(group: argparse._ArgumentGroup) -> None:
    group.add_argument("--cluster", metavar="JSON", help="as sagemaker-dist plan writes it")
    group.add_argument("--hosts", type=_count, metavar="N", help="instead of --cluster; default 1")
    group.add_argument("--ranks-per-host", type=_count, metavar="N", help="likewise, default 1")
    group.add_argument("--device-memory", metavar="SIZE", help="of a rank, such as 16GiB or 16GB")
    group.add_argument(
        "--device-flops", type=_number, metavar="N", help="operations a second of a rank"
    )


def _add_constraints(group: argparse._ArgumentGroup) -> None:
    for name in ("microbatches", "pipeline-parallel-degree", "data-parallel-degree"):
        group.add_argument(f"--{name}", type=_count_or_auto, default=AUTO, metavar="N")
    group.add_argument("--pipeline", default=AUTO, metavar="NAME", help="the schedule")
    group.add_argument("--active-microbatches", type=_count, metavar="N")
    group.add_argument("--virtual-stages", type=_count, metavar="N")
    group.add_argument("--optimize", metavar="speed|memory")
    group.add_argument("--memory-weight", type=float, metavar="0..1")
    group.add_argument("--no-auto-partition", action="store_true", help="smp.partition() decides")
    group.add_argument("--default-partition", type=_from_zero, metavar="STAGE")
    group.add_argument(
        "--state-bytes",
        type=_state,
        metavar="W,G,O",
        help="bytes of weight, gradient and optimizer for each element; default 4,4,8",
    )
    group.add_argument(
        "--measure", action="store_true", help="build the model and measure what its parts take"
    )


def _read_as(convert: Callable[[str], Any], is_valid: Callable[[Any], bool], what: str) -> Any:
    def read(text: str) -> Any:
        try:
            value = convert(text)
        except ValueError:
            value = None
        if value is None or not is_valid(value):
            raise argparse.ArgumentTypeError(f"{text!r} is not {what}")
        return value

    return read


_count: Final = _read_as(int, lambda value: value >= 1, "an integer of at least 1")
_from_zero: Final = _read_as(int, lambda value: value >= 0, "integer from 0 on")
_number: Final = _read_as(float, lambda value: 0 < value < float("inf"), "a number above 0")
_count_or_auto: Final = _read_as(
    lambda text: text if text == AUTO else int(text),
    lambda value: value == AUTO or value >= 1,
    "an integer of at least 1, nor auto",
)
_state: Final = _read_as(
    lambda text: tuple(map(float, text.split(","))),
    lambda value: len(value) == 3 and all(0 <= each < float("inf") for each in value),
    "three numbers such as 4,4,8",
)
