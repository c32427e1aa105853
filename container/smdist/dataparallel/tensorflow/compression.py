# SPDX-License-Identifier: Apache-2.0
"""Gradients in fewer bytes on the wire: `Compression.none`, `.fp16` and `.bf16`.

The engine adds 16-bit floats in float32 and rounds once a level (host, cluster).
"""

from __future__ import annotations

from typing import Any

from sagemaker_dist.errors import require
from smdist.dataparallel.tensorflow.library import tf


class Compressor:
    """What travels, and what comes out again; this one changes nothing."""

    @staticmethod
    def compress(tensor: Any) -> tuple[Any, Any]:
        """Return the tensor to send, and what decompress() has to know."""
        return tensor, None

    @staticmethod
    def decompress(tensor: Any, context: Any) -> Any:
        """Return the tensor as it was before compress(), dtype and all."""
        return tensor if context is None else tf.cast(tensor, context)


class Fp16Compressor(Compressor):
    """float32 and float64 as float16: more digits than bf16, and nothing over 65504."""

    @staticmethod
    def compress(tensor: Any) -> tuple[Any, Any]:
        """Cast down what is wider."""
        return _narrow(tensor, tf.float16)


class Bf16Compressor(Compressor):
    """float32 and float64 as bfloat16: the range of float32 with 8 binary digits."""

    @staticmethod
    def compress(tensor: Any) -> tuple[Any, Any]:
        """Cast down what is wider."""
        return _narrow(tensor, tf.bfloat16)


class Compression:
    """The compressions there are; a class with the same two functions does as well."""

    none = Compressor
    fp16 = Fp16Compressor
    bf16 = Bf16Compressor


def check_compression(compression: Any) -> Any:
    """Return it, if it has both functions.

    Raises:
        OptionError: It has not.
    """
    require(
        callable(getattr(compression, "compress", None))
        and callable(getattr(compression, "decompress", None)),
        what=f"compression is {compression!r}",
        why="it has no compress() and decompress()",
        mend="Pass Compression.none, Compression.fp16 or Compression.bf16",
    )
    return compression


def _narrow(tensor: Any, dtype: Any) -> tuple[Any, Any]:
    if not tensor.dtype.is_floating or tensor.dtype.size <= dtype.size:
        return tensor, None
    return tf.cast(tensor, dtype), tensor.dtype
