# SPDX-License-Identifier: Apache-2.0
"""Sizes of gradient buckets in the order in which a backward pass fills them.

    sizes      1 MiB   2 MiB   4 MiB      8 MiB      8 MiB ...     with a largest size of 8 MiB
    compute   [  0  ][    1   ][     2     ][          3          ]
    network           [   0   ][      1      ][         2         ] ...

The network starts with a small bucket, early. While a bucket travels, the next one, which is twice
as large, is computed, so the network seldom waits. The size of DDP's first bucket is 1 MiB, too.
"""

from __future__ import annotations

from typing import Final

_FIRST_BYTES: Final = 1 << 20


def bucket_sizes(largest: int) -> list[int]:
    """Return the sizes of the first buckets in bytes; all later ones have the last of these sizes.

    `largest` is the largest size in bytes, such as fusion_bytes of the job.
    """
    sizes = []
    size = _FIRST_BYTES
    while size < largest:
        sizes.append(size)
        size *= 2
    return [*sizes, largest]
