# SPDX-License-Identifier: Apache-2.0
"""Writer of safetensors files, one tensor at a time.

The writer of the safetensors library needs all tensors of a file in memory at once. The format is
simple: the length of a header, the header as JSON, and the bytes of one tensor after another.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import IO, Final

import torch
from torch import Tensor

from sagemaker_dist.errors import OptionError

_NAMES: Final = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.float8_e4m3fn: "F8_E4M3",
    torch.float8_e5m2: "F8_E5M2",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}
_ALIGNMENT: Final = 8


@dataclass(frozen=True, slots=True)
class Slot:
    """Shape and type of a tensor to write."""

    shape: tuple[int, ...]
    dtype: torch.dtype

    @property
    def num_bytes(self) -> int:
        """Size of the tensor in the file, in bytes."""
        return torch.Size(self.shape).numel() * self.dtype.itemsize


def write_tensors(
    stream: IO[bytes], slots: Mapping[str, Slot], tensors: Iterator[tuple[str, Tensor]]
) -> None:
    """Write a safetensors file, one tensor after another.

    Args:
        stream: The open file.
        slots: Shape and type of each tensor, by name.
        tensors: Names and values of the same tensors, in the same order.
    """
    header = _header(slots)
    stream.write(struct.pack("<Q", len(header)))
    stream.write(header)
    for _, tensor in tensors:
        data = tensor.contiguous().reshape(-1)
        if data.numel():
            stream.write(data.view(torch.uint8).numpy().data)


def _header(slots: Mapping[str, Slot]) -> bytes:
    document: dict[str, object] = {"__metadata__": {"format": "pt"}}
    offset = 0
    for name, slot in slots.items():
        end = offset + slot.num_bytes
        document[name] = {
            "dtype": _NAMES[slot.dtype],
            "shape": list(slot.shape),
            "data_offsets": [offset, end],
        }
        offset = end
    text = json.dumps(document, separators=(",", ":")).encode()
    return text.ljust(-(-len(text) // _ALIGNMENT) * _ALIGNMENT)


def refused(slots: Mapping[str, Slot]) -> Iterator[OptionError]:
    """Yield an error for each tensor whose type safetensors does not support.

    Args:
        slots: Shape and type of each tensor, by name.
    """
    for name, slot in slots.items():
        if slot.dtype not in _NAMES:
            yield OptionError(
                f"{name!r} is {slot.dtype}",
                "safetensors does not support this type",
                "Convert it, or save the model with save_checkpoint(partial=False)",
                about=name,
                kind="unsupported_dtype",
            )
