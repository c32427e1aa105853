# SPDX-License-Identifier: Apache-2.0
"""What a program depends on besides the numbers: where it differs, capture again.

Forward functions branch on shapes, on `self.training`, on `self.scale` and on what the batch
holds besides tensors. A program has one answer to each of these inside it.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

from smdist.modelparallel.torch.capture.refusals import has_hooks
from smdist.modelparallel.torch.modes import current_modes
from smdist.modelparallel.torch.tree import flatten

_SCALARS = (bool, int, float, complex, str, bytes, type(None))


def signature(model: nn.Module, arguments: tuple[Any, Any]) -> Hashable:
    """Equal for two calls of a model if one program serves both."""
    leaves, form = flatten(arguments)
    return (
        form,
        tuple(_leaf(leaf) for leaf in leaves),
        tuple(_settings(model)),
        tuple(parameter.requires_grad for parameter in model.parameters()),
        current_modes(),
        torch.get_default_dtype(),
    )


def _leaf(leaf: Any) -> Hashable:
    if isinstance(leaf, Tensor):
        return tuple(leaf.shape), leaf.dtype, leaf.device, leaf.requires_grad
    return (type(leaf), leaf) if isinstance(leaf, _SCALARS) else (type(leaf), id(leaf))


def _settings(model: nn.Module) -> Iterator[Hashable]:
    """Plain attributes of all modules and, once each, of the objects that they hold."""
    seen: set[int] = set()
    for module in model.modules():
        yield tuple(_plain(vars(module))), has_hooks(module)
        for value in vars(module).values():
            if _is_settings(value) and id(value) not in seen:
                seen.add(id(value))
                yield tuple(_plain(vars(value)))


def _is_settings(value: Any) -> bool:
    return hasattr(value, "__dict__") and not isinstance(value, (Tensor, nn.Module, type))


def _plain(attributes: dict[str, Any]) -> Iterator[Hashable]:
    for name, value in attributes.items():
        if isinstance(value, _SCALARS):
            yield name, value
        elif isinstance(value, (list, tuple)) and all(isinstance(v, _SCALARS) for v in value):
            yield name, tuple(value)
