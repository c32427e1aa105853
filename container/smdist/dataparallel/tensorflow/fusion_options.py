# SPDX-License-Identifier: Apache-2.0
"""Size of the job's fusion buffers."""

from __future__ import annotations

from functools import cache

from sagemaker_dist.contract import DataParallel
from smdist.config import read_rank_config


@cache
def fusion_bytes() -> int:
    """Return the bytes per buffer: the job's value, or 25 MiB if it is not set."""
    return checked(read_rank_config().fusion_bytes)


def checked(asked: int | None) -> int:
    """Return `asked` if it is in range, or the default of a job for None.

    Raises:
        OptionError: The value is out of range.
    """
    return (DataParallel() if asked is None else DataParallel(fusion_bytes=asked)).fusion_bytes
