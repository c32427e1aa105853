# SPDX-License-Identifier: Apache-2.0
"""What the environment variables of a rank say together: misspelt names, hosts without ranks."""

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
    "SMDIST_SECRET_FILE",
    "SMDIST_START_TIMEOUT_SECONDS",
    "SMDIST_STOP_SECONDS",
    "SMDIST_TAKE_OVER",
    "SMDIST_TIMEOUT_SECONDS",
)
_LIKENESS: Final = 0.85


def misspelt(names: Iterable[str]) -> Iterator[OptionError]:
    """Whatever is nearly one of ours would be ignored otherwise, and nobody would notice."""
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
    """The likest of ours, or one that has words more or fewer: TIMEOUT for TIMEOUT_SECONDS."""
    extended = (known for known in _VARIABLES if _is_longer(known, name) or _is_longer(name, known))
    likest = get_close_matches(name, _VARIABLES, n=1, cutoff=_LIKENESS)
    return next(chain(likest, extended), None)


def _is_longer(name: str, other: str) -> bool:
    return other != _PREFIX and name.startswith(other.rstrip("_") + "_")


def hosts_without_ranks(environ: Mapping[str, str]) -> int:
    """How many hosts a job has that run the script each alone, as its first host is told.

    0 where the script runs as ranks, on one host, and on all hosts but the first.
    """
    if environ.get("RANK"):
        return 0
    try:
        hosts = json.loads(environ.get("SM_HOSTS") or "[]")
    except ValueError:
        return 0
    is_first = isinstance(hosts, list) and hosts[:1] == [environ.get("SM_CURRENT_HOST")]
    return len(hosts) if is_first and len(hosts) > 1 else 0
