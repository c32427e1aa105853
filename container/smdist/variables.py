# SPDX-License-Identifier: Apache-2.0
"""Names of the environment variables that ranks read, to find one that is misspelt."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from difflib import get_close_matches
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
        meant = get_close_matches(name, _VARIABLES, n=1, cutoff=_LIKENESS)
        if meant:
            yield OptionError(
                f"the environment variable {name} is set",
                "smdist reads none of this name",
                f"Did you mean {meant[0]}? Otherwise unset it",
            )
