# SPDX-License-Identifier: Apache-2.0
"""Compression of tensors before they are sent: `Compression.none`, `.fp16` and `.bf16`.

The engine adds 16-bit floats in float32 and rounds the sum.
"""

from __future__ import annotations

from typing import Any

import torch


class NoneCompressor:
    """Compression that leaves tensors unchanged."""

    @staticmethod
    def compress(tensor: torch.Tensor) -> tuple[torch.Tensor, Any]:
        """Return the tensor to send, and a context for decompress()."""
        return tensor, None

    @staticmethod
    def decompress(tensor: torch.Tensor, context: Any) -> torch.Tensor:
        """Return the received tensor in the dtype `context`; unchanged if that is None."""
        return tensor if context is None else tensor.to(context)


class HalfCompressor(NoneCompressor):
    """Compression of floats to float16, whose maximum is 65504; integers stay as they are."""

    dtype = torch.float16

    @classmethod
    def compress(cls, tensor: torch.Tensor) -> tuple[torch.Tensor, Any]:
        """Return the tensor in 16 bits, and its own dtype."""
        if tensor.dtype.is_floating_point:
            return tensor.to(cls.dtype), tensor.dtype
        return tensor, None


class BrainCompressor(HalfCompressor):
    """Compression of floats to bfloat16, with the range of float32 and 8 binary digits."""

    dtype = torch.bfloat16


class Compression:
    """Compressions to choose from; Horovod has the first two."""

    none = NoneCompressor
    fp16 = HalfCompressor
    bf16 = BrainCompressor
