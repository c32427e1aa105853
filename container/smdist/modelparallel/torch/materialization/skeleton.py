# SPDX-License-Identifier: Apache-2.0
"""Skeleton of a model: a copy on the meta device, which takes almost no memory.

The skeleton is used when a batch has another shape than before. Then the forward pass must be
recorded again, but this rank may have freed most of the model.

Parameters and buffers are replaced in all places where modules store them. An LSTM, for example,
also stores its parameters in a list.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from copy import deepcopy
from typing import Any

import torch
from torch import Tensor, nn

from smdist.modelparallel.torch.capture.shape_probe import STANDS_IN


def hollow(tensor: Tensor) -> Tensor:
    """Return a copy of a tensor on the meta device: same class, shape, strides and attributes."""
    with torch.no_grad():
        bare = torch.empty_strided(
            tensor.shape, tensor.stride(), dtype=tensor.dtype, device=torch.device("meta")
        )
    return like(tensor, bare)


def like(tensor: Tensor, values: Tensor) -> Tensor:
    """Return a tensor with the memory of `values`, and with class and attributes of `tensor`."""
    if isinstance(tensor, nn.Parameter):
        made: Tensor = torch.Tensor._make_subclass(type(tensor), values, tensor.requires_grad)
    else:
        made = values.requires_grad_(tensor.requires_grad)
    made.__dict__.update(tensor.__dict__)
    return made


def entries(modules: Iterable[nn.Module]) -> Iterable[Tensor]:
    """Yield the parameters and buffers of each of these modules, but not of their submodules.

    A tensor that several modules share is yielded for each of them.
    """
    for module in modules:
        for group in (module._parameters, module._buffers):
            yield from (tensor for tensor in group.values() if tensor is not None)


def replace(modules: Iterable[nn.Module], new: Mapping[int, Tensor]) -> None:
    """Replace tensors in modules, and in lists that are attributes of modules.

    Args:
        modules: Modules to change; their submodules are not changed.
        new: New tensors, by the id of the old one.
    """
    for module in modules:
        for group in (module._parameters, module._buffers, vars(module)):
            for key, value in group.items():
                if isinstance(value, Tensor) and id(value) in new:
                    group[key] = new[id(value)]  # type: ignore[assignment]
        for value in vars(module).values():
            if isinstance(value, list):
                value[:] = [new.get(id(each), each) for each in value]


def skeleton(model: nn.Module) -> nn.Module:
    """Return a copy of a model with all parameters and buffers on the meta device.

    Tied parameters stay tied. Names, classes, attributes, hooks and training flags are the same as
    in the model. Tensors in plain attributes, and objects that cannot be copied, such as a lock or
    a file, are not copied but shared with the model.
    """
    memo = _without_values(model)
    try:
        return deepcopy(model, memo)
    except Exception:
        return deepcopy(model, _without_values(model) | _stubborn(model))


def _without_values(model: nn.Module) -> dict[int, Any]:
    """Return a `memo` dict, with which `deepcopy` copies a model without its values.

    The key is the id of a tensor of the model, the value is the tensor to put into the copy. For a
    parameter or buffer, the value is on the meta device. Any other tensor is shared with the model.
    """
    memo: dict[int, Any] = {}
    for module in model.modules():
        for value in vars(module).values():
            if isinstance(value, Tensor):
                memo[id(value)] = value
    for tensor in entries(model.modules()):
        if id(tensor) not in memo or memo[id(tensor)] is tensor:
            memo[id(tensor)] = hollow(tensor)
            if not tensor.is_meta:
                setattr(memo[id(tensor)], STANDS_IN, True)
    return memo


def _stubborn(model: nn.Module) -> dict[int, Any]:
    """Return a `memo` dict, with which `deepcopy` shares attributes that cannot be copied.

    The dict has such attributes of the model's modules, for example a lock, by their id.
    """
    kept: dict[int, Any] = {}
    own = ("_parameters", "_buffers", "_modules")
    for module in model.modules():
        for name, value in vars(module).items():
            if name not in own and id(value) not in kept and not _is_copied(value, model):
                kept[id(value)] = value
    return kept


def _is_copied(value: Any, model: nn.Module) -> bool:
    try:
        deepcopy(value, _without_values(model) | {id(m): m for m in model.modules()})
    except Exception:
        return False
    return True
