# SPDX-License-Identifier: Apache-2.0
"""Assignment of gradients to fusion buffers (buckets), which is the same on all ranks.

The backward pass computes the gradient of the last layer first, so this gradient is in the first
bucket. Example with five layers:

    layers     0  1  2  3  4
    buckets    [4, 3]  [2, 1]  [0]
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class BucketTensor:
    """Dtype and size of a tensor that is to be placed in a fusion buffer.

    Attributes:
        dtype: Name of the dtype, such as "float32".
        size_bytes: Size in bytes; None if it is known only when the step runs.
    """

    dtype: str
    size_bytes: int | None


def pack(tensors: Sequence[BucketTensor], fusion_bytes: int) -> list[list[int]]:
    """Return for each bucket the indices of its tensors, from the last tensor to the first.

    The buckets are in the order in which a backward pass completes them. The tensors of a bucket
    have the same dtype and at most `fusion_bytes` in total; a tensor that is larger or of unknown
    size has a bucket of its own.
    """
    buckets: list[list[int]] = []
    is_open: dict[str, list[int]] = {}
    used: dict[str, int] = {}
    for number in reversed(range(len(tensors))):
        dtype, size = tensors[number].dtype, tensors[number].size_bytes
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
