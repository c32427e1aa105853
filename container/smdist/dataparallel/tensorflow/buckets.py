# SPDX-License-Identifier: Apache-2.0
"""Assignment of gradients to fusion buffers. Pure: every rank computes the same answer alone.

gradients by layer      0     1     2     3     4       the backward pass makes 4 first
buckets in their order        [4, 3] [2, 1] [0]
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class BucketTensor:
    """Tensor to be placed in a fusion buffer.

    Attributes:
        size_bytes: Size in bytes; None if it is known only when the step runs.
    """

    dtype: str
    size_bytes: int | None


def pack(pieces: Sequence[BucketTensor], fusion_bytes: int) -> list[list[int]]:
    """Return the indices of the pieces in each bucket, in reverse order.

    Buckets are in the order in which they are complete. All pieces of a bucket have one dtype and
    at most `fusion_bytes` in total. A piece that is larger or of unknown size has its own bucket.
    """
    buckets: list[list[int]] = []
    is_open: dict[str, list[int]] = {}
    used: dict[str, int] = {}
    for number in reversed(range(len(pieces))):
        dtype, size = pieces[number].dtype, pieces[number].size_bytes
        if size is None or size > fusion_bytes:
            buckets.append([number])
            continue
        if dtype in is_open and used[dtype] + size > fusion_bytes:
            buckets.append(is_open.pop(dtype))
        if dtype not in is_open:
            is_open[dtype], used[dtype] = [], 0
        is_open[dtype].append(number)
        used[dtype] += size
    buckets.extend(is_open.values())
    return sorted(buckets, key=lambda bucket: bucket[-1], reverse=True)
