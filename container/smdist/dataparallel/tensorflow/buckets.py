# SPDX-License-Identifier: Apache-2.0
"""Assignment of gradients to fusion buffers (buckets), which is the same on all ranks.

The backward pass computes the gradient of the last layer first, so this gradient is in the first
bucket. Example with five layers of 1 MiB and buckets of at most 2 MiB:

    layers     0  1  2  3  4
    buckets    [4]  [3, 2]  [1, 0]
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from smdist.dataparallel.bucket_sizes import bucket_sizes


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
    have the same dtype and at most `fusion_bytes` in total, less in the first buckets of a dtype
    (see bucket_sizes.py). A tensor that is larger or of unknown size has a bucket of its own.
    """
    sizes = bucket_sizes(fusion_bytes)
    buckets: list[list[int]] = []
    is_open: dict[str, list[int]] = {}
    left: dict[str, int] = {}  # bytes that the open bucket of a dtype may take
    opened = Counter[str]()
    for number in reversed(range(len(tensors))):
        dtype, size = tensors[number].dtype, tensors[number].size_bytes
        if size is None or size > fusion_bytes:
            buckets.append([number])
            continue
        if dtype in is_open and size > left[dtype]:
            buckets.append(is_open.pop(dtype))
        if dtype not in is_open:
            is_open[dtype], left[dtype] = [], sizes[min(opened[dtype], len(sizes) - 1)]
            opened[dtype] += 1
        is_open[dtype].append(number)
        left[dtype] -= size
    buckets.extend(is_open.values())
    return sorted(buckets, key=lambda bucket: bucket[-1], reverse=True)
