# SPDX-License-Identifier: Apache-2.0
"""Variables of a job with restarts.

SMDIST_REPLACES_HOSTS                          set by the local runner, see `replaces_hosts`
SMDIST_RESTART_COUNT, SMDIST_MAX_RESTARTS      set by the launcher
TORCHELASTIC_RESTART_COUNT, ..._MAX_RESTARTS   the same for torch, set by the guard: torchrun,
                                               whose own restarts are turned off, sets 0
SMDIST_CONNECTED_FILE                          set by the guard, see `read_connected_file`
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Final

_RESTARTS: Final = {  # our variable -> torchelastic's
    "SMDIST_RESTART_COUNT": "TORCHELASTIC_RESTART_COUNT",
    "SMDIST_MAX_RESTARTS": "TORCHELASTIC_MAX_RESTARTS",
}


def torchelastic_variables(environ: Mapping[str, str]) -> dict[str, str]:
    """Return torchelastic's variables, by name, with the values of ours that are in `environ`."""
    return {theirs: environ[ours] for ours, theirs in _RESTARTS.items() if ours in environ}


def replaces_hosts(environ: Mapping[str, str]) -> bool:
    """Return True if the local runner starts a host again that was lost."""
    return environ.get("SMDIST_REPLACES_HOSTS") == "1"


def read_connected_file(environ: Mapping[str, str] | None = None) -> Path | None:
    """Return the path in SMDIST_CONNECTED_FILE; None if this variable is not set.

    A rank creates this file when it has connected to all other ranks.
    `environ` is os.environ by default.
    """
    path = (dict(os.environ) if environ is None else environ).get("SMDIST_CONNECTED_FILE")
    return Path(path) if path else None
