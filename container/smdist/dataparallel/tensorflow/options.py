# SPDX-License-Identifier: Apache-2.0
"""What the job says about fusion buffers."""

from __future__ import annotations

from functools import cache

from sagemaker_dist.contract import DataParallel
from smdist.config import read_rank_config


@cache
def fusion_bytes() -> int:
    """Bytes per buffer: what the job was given, 25 MiB by default."""
    return checked(read_rank_config().fusion_bytes)


def checked(asked: int | None) -> int:
    """`asked`, or the default of a job for None.

    Raises:
        OptionError: It is out of range.
    """
    return (DataParallel() if asked is None else DataParallel(fusion_bytes=asked)).fusion_bytes
