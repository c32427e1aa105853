# SPDX-License-Identifier: Apache-2.0
"""Size of the fusion buffers (buckets) of gradients."""

from __future__ import annotations

from functools import cache

from sagemaker_dist.contract import DataParallel
from smdist.config import read_rank_config


@cache
def fusion_bytes() -> int:
    """Return the bytes per gradient bucket: SMDIST_FUSION_BYTES, or 25 MiB if it is not set."""
    return checked_fusion_bytes(read_rank_config().fusion_bytes)


def checked_fusion_bytes(value: int | None) -> int:
    """Return `value` after a check of its range, or 25 MiB in bytes for None.

    Raises:
        OptionError: The value is out of range.
    """
    return (DataParallel() if value is None else DataParallel(fusion_bytes=value)).fusion_bytes
