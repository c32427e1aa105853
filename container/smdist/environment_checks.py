# SPDX-License-Identifier: Apache-2.0
"""Checks of a rank's environment variables: misspelt names, and hosts without ranks."""

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
    "SMDIST_FUSION_BYTES",
    "SMDIST_HOST_ID",
    "SMDIST_HOST_LABEL",
    "SMDIST_INTERFACE",
    "SMDIST_MASTER_PORT",
    "SMDIST_MODEL_PARALLEL",
    "SMDIST_PREPARED",
    "SMDIST_FAULT_FILE",
    "SMDIST_SECRET_FILE",
    "SMDIST_START_TIMEOUT_SECONDS",
    "SMDIST_STOP_SECONDS",
    "SMDIST_TAKE_OVER",
    "SMDIST_TIMEOUT_SECONDS",
)
_LIKENESS: Final = 0.85


def misspelt(names: Iterable[str]) -> Iterator[OptionError]:
    """Yield a fault for each variable whose name is close to a known one but not equal.

    Such a variable would be ignored without notice.
    """
    for name in names:
        if not name.startswith(_PREFIX) or name in _VARIABLES:
            continue
        if meant := _meant(name):
            yield OptionError(
                f"the environment variable {name} is set",
                "smdist reads none of this name",
                f"Did you mean {meant}? Otherwise unset it",
            )


def _meant(name: str) -> str | None:
    """Return the closest known name, also one with more or fewer words: TIMEOUT_SECONDS."""
    extended = (known for known in _VARIABLES if _is_longer(known, name) or _is_longer(name, known))
    likest = get_close_matches(name, _VARIABLES, n=1, cutoff=_LIKENESS)
    return next(chain(likest, extended), None)


def _is_longer(name: str, other: str) -> bool:
    return other != _PREFIX and name.startswith(other.rstrip("_") + "_")


def hosts_without_ranks(environ: Mapping[str, str]) -> int:
    """Return the number of hosts if each runs the script alone; known on the job's first host.

    Return 0 if the script runs as ranks, on a single host, and on all hosts but the first.
    """
    if environ.get("RANK"):
        return 0
    try:
        hosts = json.loads(environ.get("SM_HOSTS") or "[]")
    except ValueError:
        return 0
    is_first = isinstance(hosts, list) and hosts[:1] == [environ.get("SM_CURRENT_HOST")]
    return len(hosts) if is_first and len(hosts) > 1 else 0
