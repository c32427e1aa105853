# SPDX-License-Identifier: Apache-2.0
"""Environment variables, one at a time: texts become paths, numbers and integers.

No other module of `smdist` touches os.environ. Some code needs a single variable before a whole
configuration can be read, or without one.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from sagemaker_dist.contract.option_variables import USD_PER_HOUR
from sagemaker_dist.errors import OptionError

STOP_SECONDS: Final = 110  # SageMaker sends SIGKILL 120 s after SIGTERM


def read_base(environ: Mapping[str, str] | None = None) -> Path:
    """Return SageMaker's directory: SAGEMAKER_BASE_DIR, or /opt/ml if it is not set.

    `environ` is os.environ by default.
    """
    return Path(environment(environ).get("SAGEMAKER_BASE_DIR") or "/opt/ml")


def read_stop_seconds(environ: Mapping[str, str] | None = None) -> float:
    """Return the seconds between SIGTERM and SIGKILL: SMDIST_STOP_SECONDS, or 110 if not set.

    `environ` is os.environ by default.

    Raises:
        OptionError: SMDIST_STOP_SECONDS is not a number, or is negative.
    """
    return read_number(environment(environ), "SMDIST_STOP_SECONDS", STOP_SECONDS) or 0


def read_usd_per_hour(environ: Mapping[str, str] | None = None) -> float | None:
    """Return the price of all hosts of the job: SMDIST_USD_PER_HOUR, or None if not set.

    The price is in US dollars per hour. `environ` is os.environ by default.

    Raises:
        OptionError: SMDIST_USD_PER_HOUR is not a number, or is negative.
    """
    return read_number(environment(environ), USD_PER_HOUR)


def read_fault_file(environ: Mapping[str, str] | None = None) -> Path | None:
    """Return the path in SMDIST_FAULT_FILE; None if this variable is not set.

    A rank that ends with an exception writes a description of the exception to this file.
    `environ` is os.environ by default.
    """
    return read_path(environment(environ), "SMDIST_FAULT_FILE")


def read_timeline_variables(environ: Mapping[str, str] | None = None) -> tuple[str | None, bool]:
    """Return the path in HOROVOD_TIMELINE, and whether HOROVOD_TIMELINE_MARK_CYCLES is on.

    The path is None if the variable is not set, or is DYNAMIC: then start_timeline() begins the
    timeline. `environ` is os.environ by default. Variables: Horovod 0.28, "Analyze Performance".
    """
    environ = environment(environ)
    path = environ.get("HOROVOD_TIMELINE", "")
    marks_cycles = environ.get("HOROVOD_TIMELINE_MARK_CYCLES", "0") not in ("", "0")
    return None if path in ("", "DYNAMIC") else path, marks_cycles


def read_secret_variables(
    environ: Mapping[str, str] | None = None,
) -> tuple[Path | None, str | None]:
    """Return the path in SMDIST_SECRET_FILE and the secret in SMDIST_SECRET, each None if not set.

    `environ` is os.environ by default.
    """
    environ = environment(environ)
    return read_path(environ, "SMDIST_SECRET_FILE"), environ.get("SMDIST_SECRET") or None


def environment(environ: Mapping[str, str] | None) -> Mapping[str, str]:
    """Return `environ`, or a copy of this process's environment if it is None."""
    return dict(os.environ) if environ is None else environ


def set_variables(values: Mapping[str, str]) -> None:
    """Set environment variables of this process, by name."""
    os.environ.update(values)


def set_default(name: str, value: str) -> None:
    """Set an environment variable of this process if it is not set."""
    os.environ.setdefault(name, value)


def read_number(
    environ: Mapping[str, str], name: str, default: float | None = None
) -> float | None:
    """Return the number in the variable `name`, or `default` if it is not set or empty.

    Raises:
        OptionError: The value is not a number, or is negative or infinite.
    """
    text = environ.get(name)
    if not text:
        return default
    try:
        value = float(text)
    except ValueError:
        value = -1
    if not 0 <= value < float("inf"):
        raise OptionError(
            f"the environment variable {name} is {text!r}",
            "it must be a number that is not negative",
            "Set it to such a number, or unset it to use the default",
            about=name,
        )
    return value


def read_integer(environ: Mapping[str, str], name: str) -> int | None:
    """Return the whole number in the variable `name`; None if it is not set or empty.

    Raises:
        OptionError: The value is not a whole number, or is negative.
    """
    value = read_number(environ, name)
    if value is not None and not value.is_integer():
        raise OptionError(
            f"the environment variable {name} is {environ[name]!r}",
            "it must be a whole number",
            "Set it to a whole number, or unset it to use the default",
            about=name,
        )
    return None if value is None else int(value)


def read_path(environ: Mapping[str, str], name: str) -> Path | None:
    """Return the path in the variable `name`; None if it is not set or empty."""
    value = environ.get(name)
    return Path(value) if value else None
