# SPDX-License-Identifier: Apache-2.0
"""Variables of a job with restarts.

SMDIST_REPLACES_HOSTS                          set by the local runner, see `replaces_hosts`
SMDIST_RESTART_COUNT, SMDIST_MAX_RESTARTS      set by the launcher
TORCHELASTIC_RESTART_COUNT, ..._MAX_RESTARTS   the same for torch, set by the guard: torchrun,
                                               whose own restarts are turned off, sets 0
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

CONNECTED: Final = "connected"  # file beside SMDIST_FAULT_FILE, made by a connected rank
_RESTARTS: Final = {  # our variable -> torchelastic's
    "SMDIST_RESTART_COUNT": "TORCHELASTIC_RESTART_COUNT",
    "SMDIST_MAX_RESTARTS": "TORCHELASTIC_MAX_RESTARTS",
}


def torchelastic_variables(environ: Mapping[str, str]) -> dict[str, str]:
    """Return torchelastic's variables by name, from those of the launcher in `environ`."""
    return {theirs: environ[ours] for ours, theirs in _RESTARTS.items() if ours in environ}


def replaces_hosts(environ: Mapping[str, str]) -> bool:
    """Return True if the local runner starts a host again that was lost."""
    return environ.get("SMDIST_REPLACES_HOSTS") == "1"
