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
    """Parser that raises OptionError for wrong arguments."""

    def error(self, message: str) -> Any:
        """Raise OptionError; argparse would exit the process."""
        message = message.removeprefix("argument ")
        why = f"{self.prog} does not accept these arguments"
        raise OptionError(message, why, f"Run {self.prog} --help to see all arguments")


def read_arguments(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Return the parsed command line.

    `--program` is the name of the command in help texts and errors.

    Args:
        arguments: Command-line arguments without the program's name; None for the arguments of
            this process.

    Raises:
        OptionError: An argument is unknown or has a wrong value.
    """
    first = _Parser(add_help=False, allow_abbrev=False)
    first.add_argument("--program", default=_PROGRAM)
    known, rest = first.parse_known_args(arguments)
    parser = _Parser(prog=known.program, description=__doc__, allow_abbrev=False)
    parser.description = (
        "Plan how a model is divided over a cluster. FILE defines the functions model(), which"
        " returns the model, of torch or of Keras, and example(), which returns the batch of one"
        " replica. Unless --measure is given, the model is built without memory for its weights:"
        ' under torch.device("meta"), or with delayed variables of Keras.'
    )
    parser.add_argument("file", type=Path, metavar="FILE")
    _add_cluster(parser.add_argument_group("cluster"))
    _add_constraints(
        parser.add_argument_group(
            "options of the plan; the planner chooses those that are left out"
        )
    )
    output = parser.add_argument_group("output")
    output.add_argument("--json", action="store_true", help="print the plan as JSON")
    output.add_argument(
        "--save", type=Path, metavar="FILE", help="save the plan as JSON, which can be edited"
    )
    output.add_argument(
        "--plot", type=Path, metavar="FILE", help="draw the plan into a .png, .svg or .pdf file"
    )
    return parser.parse_args(rest)


def _add_cluster(group: argparse._ArgumentGroup) -> None:
    group.add_argument("--cluster", metavar="JSON", help="hosts, links and device as JSON")
    group.add_argument("--hosts", type=_count, metavar="N", help="number of hosts; default 1")
    group.add_argument(
        "--ranks-per-host", type=_count, metavar="N", help="ranks on each host; default 1"
    )
    group.add_argument(
        "--device-memory", metavar="SIZE", help="memory of a rank, such as 16GiB or 16GB"
    )
    group.add_argument(
        "--device-flops",
        type=_number,
        metavar="N",
        help="floating-point operations per second of a rank",
    )
    group.add_argument(
        "--calibration", type=Path, metavar="FILE", help="measured speeds of such a machine"
    )


def _add_constraints(group: argparse._ArgumentGroup) -> None:
    for name in ("microbatches", "pipeline-parallel-degree", "data-parallel-degree"):
        group.add_argument(f"--{name}", type=_count_or_auto, default=AUTO, metavar="N")
    group.add_argument("--pipeline", default=AUTO, metavar="NAME", help="pipeline schedule")
    group.add_argument("--active-microbatches", type=_count, metavar="N")
    group.add_argument("--virtual-stages", type=_count, metavar="N")
    group.add_argument("--optimize", metavar="speed|memory")
    group.add_argument("--memory-weight", type=float, metavar="0..1")
    group.add_argument(
        "--no-auto-partition", action="store_true", help="smp.partition() chooses stages"
    )
    group.add_argument("--default-partition", type=_from_zero, metavar="STAGE")
    group.add_argument(
        "--state-bytes",
        type=_state,
        metavar="W,G,O",
        help="bytes of weight, gradient and optimizer state for each element; default 4,4,8",
    )
    group.add_argument(
        "--measure", action="store_true", help="build the model and measure its costs"
    )


def _read_as(convert: Callable[[str], Any], is_valid: Callable[[Any], bool], what: str) -> Any:
    """Return a function that converts and checks the text of an argument, for argparse.

    Args:
        convert: Function that converts the text to a value, or raises ValueError.
        is_valid: Function that returns True for valid values.
        what: Description of valid values in the error, such as "a number above 0".
    """

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
_from_zero: Final = _read_as(int, lambda value: value >= 0, "an integer of at least 0")
_number: Final = _read_as(float, lambda value: 0 < value < float("inf"), "a number above 0")
_count_or_auto: Final = _read_as(
    lambda text: text if text == AUTO else int(text),
    lambda value: value == AUTO or value >= 1,
    "an integer of at least 1, or auto",
)
_state: Final = _read_as(
    lambda text: tuple(map(float, text.split(","))),
    lambda value: len(value) == 3 and all(0 <= each < float("inf") for each in value),
    "three numbers of at least 0, such as 4,4,8",
)
