# SPDX-License-Identifier: Apache-2.0
"""Check that all ranks reduce under the same name, without a further message.

Each of the 32 bits of the name's CRC-32 becomes two elements at the end of the buffer: (1, 0) if it
is set, else (0, 1). They are reduced with the tensor. The result of a pair tells whether the ranks
had the same bit, in any dtype and with any reduce operation:

    operation             same bit            different bits
    Sum, Average, Max     one element is 0    none is 0
    Min, Product          one element is 1    both are 0

A rank that has joined contributes zeros, which change neither row: only Sum and Average go on then.
"""

from __future__ import annotations

import zlib
from typing import Any, Final

import torch
import torch.distributed as dist

_BITS: Final = 32
NUM_MARKS: Final = 2 * _BITS
_EXACT_RANKS: Final = 256  # bfloat16 and 8-bit integers hold no larger count exactly
_SHRINKING: Final = (dist.ReduceOp.MIN, dist.ReduceOp.PRODUCT)


def marked(buffer: torch.Tensor, name: str) -> torch.Tensor:
    """Return a new flat buffer with the elements of `buffer` and the marks of the name."""
    checksum = zlib.crc32(name.encode())
    bits = [checksum >> each & 1 for each in range(_BITS)]
    marks = torch.tensor([each for bit in bits for each in (bit, 1 - bit)])
    return torch.cat([buffer, marks.to(buffer)])


def have_differed(result: torch.Tensor, op: Any) -> bool:
    """Return True if ranks have reduced under different names.

    Args:
        result: The reduced buffer of marked().
        op: The reduce operation of torch.
    """
    pairs = result[-NUM_MARKS:].view(_BITS, 2) != 0
    differs = ~pairs.any(1) if op in _SHRINKING else pairs.all(1)
    return bool(differs.any())


def have_all_contributed(result: torch.Tensor, op: Any, size: int) -> bool:
    """Return True if no rank has joined; False if one may have.

    Args:
        result: The reduced buffer of marked().
        op: The reduce operation of torch.
        size: Number of ranks.
    """
    if op not in (dist.ReduceOp.SUM, dist.ReduceOp.AVG):
        return True
    if size > _EXACT_RANKS or result.dtype is torch.bool:
        return False
    marks = result[-2:]
    total = float((marks.real if marks.is_complex() else marks).double().sum())
    return abs(total - (size if op == dist.ReduceOp.SUM else 1)) < 0.5 / size
