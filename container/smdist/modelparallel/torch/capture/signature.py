# SPDX-License-Identifier: Apache-2.0
"""Signature of a model call: shapes, types and settings that a captured program depends on.

Forward functions branch on shapes, on `self.training`, on other attributes of modules and on
objects in the batch that are no tensors. A program contains one outcome of each branch, so a call
with another signature needs another capture.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from enum import Enum
from types import BuiltinFunctionType, FunctionType
from typing import Any, Final

import torch
from torch import Tensor, nn

from smdist.modelparallel.torch.program.program import current_modes
from smdist.modelparallel.torch.program.pytree import flatten

_SCALARS = (bool, int, float, complex, str, bytes, type(None))
_ATOMS = (
    *_SCALARS, Enum, type, torch.dtype, torch.device, FunctionType, BuiltinFunctionType
)  # fmt: skip
_MODULES_OWN = frozenset(vars(nn.Module())) - {"training"}
_DEPTH = 8  # levels of nested lists
OTHER: Final = object()


def signature(model: nn.Module, arguments: tuple[Any, Any]) -> Hashable:
    """Return a key of one model call; calls with equal keys can run the same captured program.

    Args:
        model: The model; its attributes and hooks count.
        arguments: Positional arguments and keyword arguments of the call.
    """
    leaves, form = flatten(arguments)
    return (
        form,
        tuple(_leaf(leaf) for leaf in leaves),
        tuple(_settings(model)),
        tuple(parameter.requires_grad for parameter in model.parameters()),
        current_modes(),
        torch.get_default_dtype(),
    )


def plain(value: Any, depth: int = _DEPTH) -> Hashable:
    """Return an attribute of a module as a value that can be compared and hashed.

    Args:
        value: A number, string, type, function, or nested containers of these.
        depth: Number of levels of nested containers to search.

    Returns:
        The value with its type; `OTHER` if it is or contains an object of another kind.
    """
    if isinstance(value, _ATOMS):
        return type(value), value
    if not depth or not isinstance(value, (list, tuple, dict, set, frozenset)):
        return OTHER
    items = value.items() if isinstance(value, dict) else value
    parts = [plain(each, depth - 1) for each in items]
    if OTHER in parts:
        return OTHER
    ordered = not isinstance(value, (set, frozenset))
    return type(value), tuple(parts) if ordered else frozenset(parts)


def own_attributes(holder: Any) -> dict[str, Any]:
    """Return the attributes of an object by name, without those that every `nn.Module` has."""
    return {name: value for name, value in vars(holder).items() if name not in _MODULES_OWN}


def _leaf(leaf: Any) -> Hashable:
    if isinstance(leaf, Tensor):
        return tuple(leaf.shape), leaf.dtype, leaf.device, leaf.requires_grad
    return (type(leaf), leaf) if isinstance(leaf, _SCALARS) else (type(leaf), id(leaf))


def _settings(model: nn.Module) -> Iterator[Hashable]:
    """Yield the comparable attributes of all modules and of the objects in their attributes."""
    seen: set[int] = set()
    for module in model.modules():
        yield tuple(_plain(module)), has_hooks(module)
        for value in vars(module).values():
            if _is_settings(value) and id(value) not in seen:
                seen.add(id(value))
                yield tuple(_plain(value))


def _is_settings(value: Any) -> bool:
    return hasattr(value, "__dict__") and not isinstance(value, (Tensor, nn.Module, type))


def _plain(holder: Any) -> Iterator[Hashable]:
    for name, value in own_attributes(holder).items():
        found = plain(value)
        if found is not OTHER:
            yield name, found


def has_hooks(module: nn.Module) -> bool:
    """Return True if a module has forward or backward hooks of its own."""
    return bool(
        module._forward_hooks
        or module._forward_pre_hooks
        or module._backward_hooks
        or module._backward_pre_hooks
    )
