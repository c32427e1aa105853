# SPDX-License-Identifier: Apache-2.0
"""Environment variables that set options of `DataParallel`, and checks of variables SMDIST_*.

The variable of the option `lanes` is SMDIST_LANES. In a job it counts if the option is left out.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import fields, replace
from difflib import get_close_matches
from itertools import chain
from typing import Any, Final

from sagemaker_dist.contract.data_parallel import DataParallel
from sagemaker_dist.contract.ranges import (
    ELASTIC_MIN,
    ENCRYPT,
    GPU_COLLECTIVES,
    INTEGRITY,
    WEIGHTS,
    range_faults,
)
from sagemaker_dist.errors import OptionError

_PREFIX: Final = "SMDIST_"
USD_PER_HOUR: Final = "SMDIST_USD_PER_HOUR"  # price of all hosts of the job
_NO_VARIABLE: Final = ("processes_per_host", ELASTIC_MIN)
OPTIONS: Final = tuple(each.name for each in fields(DataParallel) if each.name not in _NO_VARIABLE)
_DEFAULTS: Final = DataParallel()
_MIN_SIMILARITY: Final = 0.85  # ratio of difflib; 1 means equal


def variable_of(option: str) -> str:
    """Return the name of an option's environment variable: SMDIST_LANES for "lanes"."""
    return f"{_PREFIX}{option.upper()}"


VARIABLES: Final = (
    *map(variable_of, OPTIONS),
    "SMDIST_ADDRESS",
    "SMDIST_DEVICE_WAIT",
    "SMDIST_ELASTIC_SOCKET",
    "SMDIST_ENDED_HOSTS_FILE",
    "SMDIST_HOST_ID",
    "SMDIST_HOST_LABEL",
    "SMDIST_INTERFACE",
    "SMDIST_MASTER_PORT",
    "SMDIST_MODEL_PARALLEL",
    "SMDIST_OPEN_MPI",
    "SMDIST_PREPARED",
    "SMDIST_REPLACES_HOSTS",
    "SMDIST_RESTART_COUNT",
    "SMDIST_FAULT_FILE",
    "SMDIST_SECRET",
    "SMDIST_SECRET_FILE",
    "SMDIST_STOP_SECONDS",
    "SMDIST_TAKE_OVER",
    USD_PER_HOUR,
)


def option_text(value: Any) -> str:
    """Return an option's value as the text of its environment variable."""
    if isinstance(value, tuple):
        return ",".join(map(str, value))
    return str(int(value)) if isinstance(value, bool) else str(value)


def option_value(option: str, text: str) -> Any:
    """Return the value in the text of a variable; the text itself where it is not valid."""
    if option == WEIGHTS:
        return tuple(_integer(part) for part in text.split(","))
    if option in (INTEGRITY, GPU_COLLECTIVES):
        return text
    if option == ENCRYPT:
        return {"1": True, "0": False}.get(text, text)
    return _integer(text)


def value_faults(environ: Mapping[str, str]) -> Iterator[OptionError]:
    """Yield a fault for each variable of an option whose value is outside the option's range.

    An empty variable counts as not set.
    """
    for option in OPTIONS:
        variable = variable_of(option)
        if text := environ.get(variable):
            label = f"the environment variable {variable}"
            for fault in range_faults(option, option_value(option, text), label):
                fault.about = variable, *fault.about[1:]
                yield fault


def conflict_faults(options: DataParallel, environ: Mapping[str, str]) -> Iterator[OptionError]:
    """Yield a fault for each option that was passed and has another value in its variable.

    Requires: the values of the variables are valid.
    """
    for option, value in _set_by_variable(environ):
        passed = getattr(options, option)
        if passed not in (_default(option), value):
            variable = variable_of(option)
            yield OptionError(
                f"the environment variable {variable} is {environ[variable]!r}",
                f"the option {option} of DataParallel is {passed!r}, and one of them would be"
                " ignored",
                f"Remove {variable}, or leave {option} out",
                about=variable,
                kind="conflict",
            )


def with_variables(options: DataParallel, environ: Mapping[str, str]) -> DataParallel:
    """Return `options`, where each option that was left out has the value of its variable.

    Requires: the values of the variables are valid, and in no conflict with options.
    """
    left_out = {
        option: value
        for option, value in _set_by_variable(environ)
        if getattr(options, option) == _default(option)
    }
    return replace(options, **left_out) if left_out else options


def misspelt(names: Iterable[str]) -> Iterator[OptionError]:
    """Yield a fault for each variable SMDIST_* that is unknown and similar to a known one.

    `names` are the names of all environment variables. Without this check a misspelt variable
    would be ignored silently.
    """
    for name in names:
        if not name.startswith(_PREFIX) or name in VARIABLES:
            continue
        if similar := _closest(name):
            yield OptionError(
                f"the environment variable {name} is set",
                "smdist reads no variable of this name",
                f"Did you mean {similar}? Otherwise unset {name}",
                about=name,
                kind="unknown",
            )


def _set_by_variable(environ: Mapping[str, str]) -> Iterator[tuple[str, Any]]:
    for option in OPTIONS:
        if text := environ.get(variable_of(option)):
            yield option, option_value(option, text)


def _default(option: str) -> Any:
    return getattr(_DEFAULTS, option)


def _closest(name: str) -> str | None:
    """Return the known variable closest to `name`, or None if none is close.

    A name is also close if it lacks words at its end, such as _SECONDS, or has additional ones.
    """
    extended = (known for known in VARIABLES if _is_longer(known, name) or _is_longer(name, known))
    closest = get_close_matches(name, VARIABLES, n=1, cutoff=_MIN_SIMILARITY)
    return next(chain(closest, extended), None)


def _is_longer(name: str, other: str) -> bool:
    return other != _PREFIX and name.startswith(other.rstrip("_") + "_")


def _integer(text: str) -> int | str:
    """Return the integer in the text, or the text itself, which the range check then reports."""
    try:
        return int(text)
    except ValueError:
        return text
