# SPDX-License-Identifier: Apache-2.0
"""Conversion of nested arguments and results to a flat list of leaves with a form, and back.

    {"x": t, "masks": (m, None)}  <->  [t, m, None] and the form {"x": *, "masks": (*, *)}

PyTorch's own pytree does not flatten plain dataclasses and slices, and libraries may register types
with it. Here the result depends on the classes in the data alone.
"""

from __future__ import annotations

import dataclasses
import zlib
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

import numpy as np
import torch
from torch import Tensor

_SCALARS = (
    bool, int, float, complex, str, bytes, type(None), Enum, np.generic, torch.dtype,
    torch.device, torch.Size,
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Form:
    """Nesting of data: its containers, without the values in them (PyTorch's TreeSpec).

    Attributes:
        type: Class of the container; None for a leaf, which is any other value.
        keys: Keys of a mapping, field names of a dataclass, or indices.
        children: Form of the value at each key.
    """

    type: type | None = None
    keys: tuple[Any, ...] = ()
    children: tuple[Form, ...] = ()

    @property
    def num_leaves(self) -> int:
        """Number of values (leaves) in data of this form."""
        return 1 if self.type is None else sum(child.num_leaves for child in self.children)


LEAF = Form()


def flatten(data: Any) -> tuple[list[Any], Form]:
    """Return the values in nested data from left to right, and the data's form.

    The form is the nesting without the values.
    """
    parts = _parts(data)
    if parts is None:
        return [data], LEAF
    leaves: list[Any] = []
    children = []
    for _, part in parts:
        inner, form = flatten(part)
        leaves += inner
        children.append(form)
    return leaves, Form(type(data), tuple(key for key, _ in parts), tuple(children))


def unflatten(form: Form, leaves: Sequence[Any]) -> Any:
    """Build nested data from a flat list of values; all containers are new.

    Args:
        form: Nesting of the data, as `flatten` returns it.
        leaves: Values of the data, from left to right.
    """
    return _build(form, iter(leaves))


def map_leaves(function: Callable[[Any], Any], data: Any) -> Any:
    """Return nested data of the same form with `function` applied to every value."""
    leaves, form = flatten(data)
    return unflatten(form, [function(leaf) for leaf in leaves])


def paths(form: Form, prefix: str = "") -> Iterator[str]:
    """Yield the path of each value in nested data, such as "batch.x" or "0.mask".

    Args:
        form: Nesting of the data.
        prefix: First part of all paths.
    """
    if form.type is None:
        yield prefix
    for key, child in zip(form.keys, form.children, strict=True):
        yield from paths(child, f"{prefix}.{key}" if prefix else str(key))


def _parts(data: Any) -> list[tuple[Any, Any]] | None:
    if isinstance(data, dict):
        return list(data.items()) if _is_plain_mapping(data) else None
    if isinstance(data, (list, tuple)) and not isinstance(data, torch.Size):
        return list(enumerate(data))
    if isinstance(data, slice):
        return [("start", data.start), ("stop", data.stop), ("step", data.step)]
    if dataclasses.is_dataclass(data) and not isinstance(data, type):
        return _fields(data)
    return None


def _is_plain_mapping(data: dict[Any, Any]) -> bool:
    return type(data) in (dict, defaultdict) or _is_ordered(type(data))


def _is_ordered(cls: type) -> bool:
    # transformers' ModelOutput is both an ordered dict and a dataclass.
    return cls.__name__ == "OrderedDict" or dataclasses.is_dataclass(cls)


def _fields(data: Any) -> list[tuple[Any, Any]] | None:
    """Return the fields of a dataclass instance as pairs of name and value.

    The result is None if the instance contains no tensors, or is a module. Then it counts as a
    single value.
    """
    if isinstance(data, torch.nn.Module):
        return None
    parts = [(field.name, getattr(data, field.name, None)) for field in dataclasses.fields(data)]
    carries = any(isinstance(leaf, torch.Tensor) for _, part in parts for leaf in flatten(part)[0])
    return parts if carries else None


def _build(form: Form, leaves: Iterator[Any]) -> Any:
    if form.type is None:
        return next(leaves)
    values = [_build(child, leaves) for child in form.children]
    if issubclass(form.type, dict):
        return _mapping(form, values)
    if form.type is slice:
        return slice(*values)
    if issubclass(form.type, (list, tuple)):
        return _sequence(form.type, values)
    return _record(form, values)


def _mapping(form: Form, values: list[Any]) -> Any:
    assert form.type is not None
    items = dict(zip(form.keys, values, strict=True))
    if form.type is defaultdict:
        return defaultdict(None, items)
    return form.type(**items) if dataclasses.is_dataclass(form.type) else form.type(items)


def _sequence(cls: type, values: list[Any]) -> Any:
    return cls(*values) if hasattr(cls, "_fields") else cls(values)


def _record(form: Form, values: list[Any]) -> Any:
    assert form.type is not None
    record: Any = object.__new__(form.type)
    for name, value in zip(form.keys, values, strict=True):
        object.__setattr__(record, name, value)
    return record


def described(data: Any) -> str:
    """Return a text that describes nested data: shapes and types of tensors, and other values."""
    leaves, form = flatten(data)
    return "; ".join(
        f"{path} {_text(leaf)}" for path, leaf in zip(paths(form), leaves, strict=True)
    )


def checksum(data: Any) -> str:
    """Return a text with checksums of all tensors and arrays in nested data, and their paths.

    The checksum is CRC-32, because every step with split layers computes it: a quarter of the time
    of BLAKE2, about 0.25 ms for 1 MB. Ranks with other data go unnoticed with a chance of 2**-32.
    """
    leaves, form = flatten(data)
    found = ((path, _bytes(leaf)) for path, leaf in zip(paths(form), leaves, strict=True))
    return "; ".join(f"{path} {zlib.crc32(each):08x}" for path, each in found if each is not None)


def _bytes(leaf: Any) -> Any:
    """Return the bytes of a tensor or array, as an array; None for other values.

    The result is also None if there are no bytes to read, as for a tensor on the meta device.
    """
    if isinstance(leaf, np.ndarray):
        return None if leaf.dtype.hasobject else np.ascontiguousarray(leaf).reshape(-1).view("u1")
    if not isinstance(leaf, Tensor) or leaf.is_meta or leaf.is_quantized:
        return None
    plain = leaf.detach().to_dense() if leaf.layout is not torch.strided else leaf.detach()
    plain = plain.resolve_conj().resolve_neg().cpu().contiguous().reshape(-1)
    return plain.view(torch.uint8).numpy()


def _text(leaf: Any) -> str:
    if isinstance(leaf, Tensor | np.ndarray):
        return f"{leaf.dtype}{list(leaf.shape)}"
    if isinstance(leaf, set | frozenset):
        return f"{type(leaf).__name__} of {sorted(map(_text, leaf))}"
    return repr(leaf) if isinstance(leaf, _SCALARS) else type(leaf).__name__
