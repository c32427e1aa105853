# SPDX-License-Identifier: Apache-2.0
"""Compression of gradients on the wire: `Compression.none`, `.fp16` and `.bf16`.

The engine adds 16-bit floats in float32, and rounds once within the host and once across hosts.
"""

from __future__ import annotations

from typing import Any

from sagemaker_dist.errors import require
from smdist.dataparallel.tensorflow.op_library import tf


class Compressor:
    """Compression of a tensor before it is sent; this base class changes nothing."""

    @staticmethod
    def compress(tensor: Any) -> tuple[Any, Any]:
        """Return the tensor to send, and the context that decompress() needs."""
        return tensor, None

    @staticmethod
    def decompress(tensor: Any, context: Any) -> Any:
        """Return the tensor in the dtype that it had before compress()."""
        return tensor if context is None else tf.cast(tensor, context)


class Fp16Compressor(Compressor):
    """Casts float32 and float64 to float16: more digits than bfloat16, but a maximum of 65504."""

    @staticmethod
    def compress(tensor: Any) -> tuple[Any, Any]:
        """Cast a wider float to float16."""
        return _narrow(tensor, tf.float16)


class Bf16Compressor(Compressor):
    """Casts float32 and float64 to bfloat16: the range of float32 with 8 binary digits."""

    @staticmethod
    def compress(tensor: Any) -> tuple[Any, Any]:
        """Cast a wider float to bfloat16."""
        return _narrow(tensor, tf.bfloat16)


class Compression:
    """Available compressions; any class with the same two functions is accepted, too."""

    none = Compressor
    fp16 = Fp16Compressor
    bf16 = Bf16Compressor


def check_compression(compression: Any) -> Any:
    """Return the compression if it has both functions.

    Raises:
        OptionError: compress() or decompress() is missing.
    """
    require(
        callable(getattr(compression, "compress", None))
        and callable(getattr(compression, "decompress", None)),
        what=f"compression is {compression!r}",
        why="it has no compress() and decompress()",
        hint="Pass Compression.none, Compression.fp16 or Compression.bf16",
    )
    return compression


def _narrow(tensor: Any, dtype: Any) -> tuple[Any, Any]:
    if not tensor.dtype.is_floating or tensor.dtype.size <= dtype.size:
        return tensor, None
    return tf.cast(tensor, dtype), tensor.dtype
