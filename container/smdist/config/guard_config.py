# SPDX-License-Identifier: Apache-2.0
"""Configuration of a guard, the small parent process of each rank.

Every variable is optional: a guard also runs without smdist's launcher.
"""

from __future__ import annotations

import socket
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from smdist.config.environment_variables import (
    STOP_SECONDS,
    environment,
    read_base,
    read_integer,
    read_stop_seconds,
)
from smdist.debug_files import state_file


@dataclass(frozen=True, slots=True, kw_only=True)
class GuardConfig:
    """Configuration of the guard, the parent process of one rank.

    Attributes:
        rank: The rank's number; None for a plain process that is no rank of a job.
        host_label: Name of this host in messages.
        socket: Path of the Unix socket at which the launcher listens, or None without a launcher.
        directory: The working directory of the script, also added to the script's import path;
            None for the working directory of the guard.
        is_quiet: True if TensorFlow's start-up log is hidden.
        stop_seconds: Seconds between SIGTERM and SIGKILL for the rank.
        state_file: File for the kernel state of a rank that does not run; None for no file.
        is_first: True for the first rank of its host, whose guard watches the launcher, too.
        inherited: The environment of the guard, which the rank inherits.
    """

    rank: int | None = None
    host_label: str
    socket: str | None = None
    directory: str | None = None
    is_quiet: bool = False
    stop_seconds: float = STOP_SECONDS
    state_file: Path | None = None
    is_first: bool = True
    inherited: Mapping[str, str] = field(default_factory=dict, repr=False)


def read_guard_config(environ: Mapping[str, str] | None = None) -> GuardConfig:
    """Read the configuration of a rank's guard, the parent process of the rank.

    `environ` is os.environ by default.
    """
    environ = environment(environ)
    return GuardConfig(
        rank=read_integer(environ, "RANK"),
        host_label=environ.get("SMDIST_HOST_LABEL") or socket.gethostname(),
        socket=environ.get("SMDIST_GUARD_SOCKET") or None,
        directory=environ.get("SMDIST_GUARD_DIRECTORY") or None,
        is_quiet=bool(environ.get("SMDIST_GUARD_QUIET")),
        stop_seconds=read_stop_seconds(environ),
        state_file=state_file(read_base(environ), environ),
        is_first=not read_integer(environ, "LOCAL_RANK"),
        inherited=environ,
    )
