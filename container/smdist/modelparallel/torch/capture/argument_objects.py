# SPDX-License-Identifier: Apache-2.0
"""Checks of call arguments that are neither tensors nor plain data such as numbers and strings.

The recorded program stores such an argument as a constant. This is right for a configuration
object. It is wrong for an object that contains tensors or that modules change, since each stage
would have its own copy of the object.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import Any

from torch import Tensor, nn

_PLAIN = (bool, int, float, complex, str, bytes, type(None), type)
_DEPTH = 4


def is_cache(leaf: Any) -> bool:
    """Return True if an argument is a key-value cache, to which every layer writes."""
    return any(cls.__name__.endswith("Cache") for cls in type(leaf).__mro__)


def carried(leaf: Any, depth: int = _DEPTH) -> str:
    """Search an argument for tensors and modules, which a constant of a program must not contain.

    Args:
        leaf: The argument.
        depth: Number of levels of nested objects to search.

    Returns:
        "tensor" or "module" for the first one found; "" if there is none.
    """
    if isinstance(leaf, nn.Module):
        return "module"
    if isinstance(leaf, _PLAIN) or depth == 0:
        return ""
    for part in _insides(leaf):
        found = "tensor" if isinstance(part, Tensor) else carried(part, depth - 1)
        if found:
            return found
    return ""


def print_of(leaf: Any, depth: int = _DEPTH) -> Any:
    """Return a fingerprint of an argument, which shows later whether its contents have changed.

    Args:
        leaf: The argument.
        depth: Number of levels of nested objects that the fingerprint covers.
    """
    if isinstance(leaf, (Tensor, *_PLAIN)) or depth == 0:
        return id(leaf) if isinstance(leaf, Tensor) else repr(leaf)
    return id(leaf), tuple(print_of(part, depth - 1) for part in _insides(leaf))


def _insides(leaf: Any) -> Iterable[Any]:
    if isinstance(leaf, partial):
        return [leaf.func, *leaf.args, *leaf.keywords.values()]
    if isinstance(leaf, dict):
        return list(leaf.values())
    if isinstance(leaf, (list, tuple, set, frozenset)):
        return list(leaf)
    cells = [
        cell.cell_contents for cell in getattr(leaf, "__closure__", None) or () if _is_set(cell)
    ]
    owner = getattr(leaf, "__self__", None) if callable(leaf) else None
    attributes = getattr(leaf, "__dict__", None)
    inside = list(attributes.values()) if isinstance(attributes, dict) else []
    return [*cells, *([] if owner is None or isinstance(owner, type) else [owner]), *inside]


def _is_set(cell: Any) -> bool:
    try:
        return cell.cell_contents is not None
    except ValueError:
        return False
