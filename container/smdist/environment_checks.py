# SPDX-License-Identifier: Apache-2.0
"""Checks of environment variables: misspelt names, and jobs whose hosts start no ranks."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from difflib import get_close_matches
from itertools import chain
from typing import Final

from sagemaker_dist.errors import OptionError
from smdist.tuning import TUNING_VARIABLES

_PREFIX: Final = "SMDIST_"
_VARIABLES: Final = (
    *TUNING_VARIABLES,
    "SMDIST_ADDRESS",
    "SMDIST_ENCRYPT",
    "SMDIST_FUSION_BYTES",
    "SMDIST_GPU_COLLECTIVES",
    "SMDIST_HOST_ID",
    "SMDIST_HOST_LABEL",
    "SMDIST_INTEGRITY",
    "SMDIST_INTERFACE",
    "SMDIST_MASTER_PORT",
    "SMDIST_MODEL_PARALLEL",
    "SMDIST_PREPARED",
    "SMDIST_FAULT_FILE",
    "SMDIST_SECRET",
    "SMDIST_SECRET_FILE",
    "SMDIST_START_TIMEOUT_SECONDS",
    "SMDIST_STOP_SECONDS",
    "SMDIST_TAKE_OVER",
    "SMDIST_TIMEOUT_SECONDS",
)
_MIN_SIMILARITY: Final = 0.85  # ratio of difflib; 1 means equal


def misspelt(names: Iterable[str]) -> Iterator[OptionError]:
    """Yield a fault for each variable SMDIST_* that is unknown and similar to a known one.

    `names` are the names of all environment variables. Without this check a misspelt variable
    would be ignored silently.
    """
    for name in names:
        if not name.startswith(_PREFIX) or name in _VARIABLES:
            continue
        if similar := _closest(name):
            yield OptionError(
                f"the environment variable {name} is set",
                "smdist reads no variable of this name",
                f"Did you mean {similar}? Otherwise unset {name}",
                about=name,
                kind="unknown",
            )


def _closest(name: str) -> str | None:
    """Return the known variable closest to `name`, or None if none is close.

    A name is also close if it lacks words at its end, such as _SECONDS, or has additional ones.
    """
    extended = (known for known in _VARIABLES if _is_longer(known, name) or _is_longer(name, known))
    closest = get_close_matches(name, _VARIABLES, n=1, cutoff=_MIN_SIMILARITY)
    return next(chain(closest, extended), None)


def _is_longer(name: str, other: str) -> bool:
    return other != _PREFIX and name.startswith(other.rstrip("_") + "_")


def hosts_without_ranks(environ: Mapping[str, str]) -> int:
    """Return the number of hosts if this is the first of several hosts and RANK is not set; else 0.

    Without the variable RANK, each host runs the script as one plain process.
    """
    if environ.get("RANK"):
        return 0
    try:
        hosts = json.loads(environ.get("SM_HOSTS") or "[]")
    except ValueError:
        return 0
    is_first = isinstance(hosts, list) and hosts[:1] == [environ.get("SM_CURRENT_HOST")]
    return len(hosts) if is_first and len(hosts) > 1 else 0
