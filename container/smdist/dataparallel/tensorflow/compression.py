# SPDX-License-Identifier: Apache-2.0
"""Compression of gradients before they are sent: `Compression.none`, `.fp16` and `.bf16`.

The engine adds 16-bit floats in float32. It rounds the sum to 16 bits once within each host and
once more across hosts.
"""

from __future__ import annotations

from typing import Any

from sagemaker_dist.errors import require
from smdist.dataparallel.tensorflow.op_library import tf


class Compressor:
    """Base class of compressions, which leaves tensors unchanged."""

    @staticmethod
    def compress(tensor: Any) -> tuple[Any, Any]:
        """Return (tensor, None): this class sends tensors unchanged.

        A subclass returns the tensor to send and a context for decompress().
        """
        return tensor, None

    @staticmethod
    def decompress(tensor: Any, context: Any) -> Any:
        """Return the received tensor in the dtype `context`, which compress() has returned.

        Return the tensor unchanged if `context` is None.
        """
        return tensor if context is None else tf.cast(tensor, context)


class Fp16Compressor(Compressor):
    """Compression to float16, which has 11 binary digits and a maximum of 65504."""

    @staticmethod
    def compress(tensor: Any) -> tuple[Any, Any]:
        """Return the tensor in float16, and its previous dtype as the context for decompress().

        Return (tensor, None) if it is not a float of more than 16 bits.
        """
        return _narrow(tensor, tf.float16)


class Bf16Compressor(Compressor):
    """Compression to bfloat16, which has the range of float32 and less precision than float16."""

    @staticmethod
    def compress(tensor: Any) -> tuple[Any, Any]:
        """Return the tensor in bfloat16, and its previous dtype as the context for decompress().

        Return (tensor, None) if it is not a float of more than 16 bits.
        """
        return _narrow(tensor, tf.bfloat16)


class Compression:
    """Available compressions: `none`, `fp16` and `bf16`.

    Any other class with compress() and decompress() can be passed as a compression, too.
    """

    none = Compressor
    fp16 = Fp16Compressor
    bf16 = Bf16Compressor


def check_compression(compression: Any) -> Any:
    """Return `compression` after a check that it has compress() and decompress().

    Raises:
        OptionError: compress() or decompress() is missing.
    """
    require(
        callable(getattr(compression, "compress", None))
        and callable(getattr(compression, "decompress", None)),
        what=f"compression is {compression!r}",
        why="it does not have the functions compress() and decompress()",
        hint="Pass Compression.none, Compression.fp16 or Compression.bf16",
        about="compression",
    )
    return compression


def _narrow(tensor: Any, dtype: Any) -> tuple[Any, Any]:
    if not tensor.dtype.is_floating or tensor.dtype.size <= dtype.size:
        return tensor, None
    return tf.cast(tensor, dtype), tensor.dtype
