# SPDX-License-Identifier: Apache-2.0
"""Options of mpirun that the sagemaker-dist launcher carries out, from `custom_mpi_options`.

    -x NAME=VALUE    sets an environment variable of every rank
    -x NAME          has no effect: ranks have the environment of their host already
    -v, --verbose    makes the launcher log the variables and the command of the ranks

The launcher starts ranks without MPI, so it refuses all other options of mpirun, each by name.
Source of the options: manual page of mpirun, Open MPI 4.1.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from sagemaker_dist.contract.aws_distributions import MOST_PROCESSES, is_pipeline_variable
from sagemaker_dist.errors import KeyPath, OptionError

OPTIONS: Final = "custom_mpi_options"
PROCESSES: Final = "processes_per_host"
_VERBOSE: Final = ("-v", "--v", "-verbose", "--verbose")
_EXPORT: Final = ("-x", "--x")
_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
# Variables that the launcher sets in each rank, with another value in each.
_OF_RANKS: Final = re.compile(
    r"(LOCAL_|GROUP_|ROLE_)?(RANK|WORLD_SIZE)|MASTER_(ADDR|PORT)|OMPI_.*|TORCHELASTIC_.*|TF_CONFIG"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class MpiOptions:
    """Parsed value of `custom_mpi_options`.

    Attributes:
        variables: Environment variables of every rank, by name.
        is_verbose: Whether the launcher logs the variables and the command of the ranks.
    """

    variables: Mapping[str, str] = field(default_factory=dict)
    is_verbose: bool = False


def read_mpi_options(text: str) -> MpiOptions:
    """Return the options in `text`, which has no faults (`option_faults`)."""
    words = iter(shlex.split(text))
    variables: dict[str, str] = {}
    is_verbose = False
    for word in words:
        if word in _VERBOSE:
            is_verbose = True
        else:
            name, equals, value = next(words).partition("=")
            if equals:
                variables[name] = value
    return MpiOptions(variables=variables, is_verbose=is_verbose)


def option_faults(text: Any, where: str, about: KeyPath) -> Iterator[OptionError]:
    """Yield a fault for each part of `custom_mpi_options` that the launcher cannot carry out.

    Args:
        text: Value of the option; None and "" have no faults.
        where: Name of the option in messages, such as "distribution['mpi']['custom_mpi_options']".
        about: Path of the option.
    """
    if not text:
        return
    if is_pipeline_variable(text):
        yield _unknown_yet(where, about)
        return
    try:
        words = shlex.split(text) if isinstance(text, str) else None
    except ValueError as error:
        hint = "Close the quotation mark, or remove it"
        yield OptionError(f"{where} is {text!r}", str(error), hint, about=about)
        return
    if words is None:
        hint = "Pass one str such as '-x NCCL_DEBUG=INFO'"
        yield OptionError(f"{where} is {text!r}", "it is not a str", hint, about, "type")
        return
    yield from _word_faults(words, where, about)


def process_faults(processes: Any, where: str, about: KeyPath) -> Iterator[OptionError]:
    """Yield a fault if `processes_per_host` of a request for MPI is not known, or is too large."""
    if is_pipeline_variable(processes):
        yield _unknown_yet(where, about)
    elif processes is not None and not (
        type(processes) is int and 1 <= processes <= MOST_PROCESSES
    ):
        yield OptionError(
            f"{where} is {processes!r}",
            f"a host starts between 1 and {MOST_PROCESSES} ranks",
            f"Pass an integer from 1 to {MOST_PROCESSES}",
            about=about,
        )


def _word_faults(words: list[str], where: str, about: KeyPath) -> Iterator[OptionError]:
    rest = iter(words)
    unknown: list[str] = []
    is_value = False  # words until the next option belong to an unknown one
    for word in rest:
        if word in _VERBOSE:
            is_value = False
        elif word in _EXPORT:
            is_value = False
            yield from _variable_faults(next(rest, ""), where, about)
        elif word.startswith("-"):
            is_value = True
            unknown.append(word)
        elif not is_value:
            unknown.append(word)
    if unknown:
        yield OptionError(
            f"{where} has {', '.join(dict.fromkeys(unknown))}",
            "the launcher of sagemaker_dist starts the ranks without MPI, and carries out only"
            " -x NAME=VALUE and --verbose",
            "Leave the others out: they set up mpirun itself",
            about=about,
            kind="unsupported",
        )


def _variable_faults(word: str, where: str, about: KeyPath) -> Iterator[OptionError]:
    name = word.partition("=")[0]
    if not _NAME.fullmatch(name):
        yield OptionError(
            f"{where} has {f'-x {word}' if word else '-x at its end'}",
            "the name of an environment variable follows -x",
            "Write it as -x NAME=VALUE",
            about=about,
        )
    elif _OF_RANKS.fullmatch(name):
        yield OptionError(
            f"{where} sets {name}",
            "the launcher sets this variable in each rank",
            f"Leave -x {word} out",
            about=about,
            kind="conflict",
        )


def _unknown_yet(where: str, about: KeyPath) -> OptionError:
    return OptionError(
        f"{where} is a pipeline variable",
        "sagemaker_dist needs its value already when the pipeline is created",
        "Pass the value itself",
        about=about,
        kind="pipeline_variable",
    )
