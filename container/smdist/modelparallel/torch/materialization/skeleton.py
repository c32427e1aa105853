# SPDX-License-Identifier: Apache-2.0
"""Copy of a model without values: every rank has the whole structure in almost no memory.

A rank that has released most of a model may get a batch of another shape. Then all forward
functions must run once more; they run on this copy.

Parameters and buffers are replaced wherever modules keep them. An LSTM, for example, also keeps its
parameters in a list of its own.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from copy import deepcopy
from typing import Any

import torch
from torch import Tensor, nn

from smdist.modelparallel.torch.capture.shape_probe import STANDS_IN


def hollow(tensor: Tensor) -> Tensor:
    """Return a copy on the meta device, with the same type, shape, strides and attributes."""
    with torch.no_grad():
        bare = torch.empty_strided(
            tensor.shape, tensor.stride(), dtype=tensor.dtype, device=torch.device("meta")
        )
    return like(tensor, bare)


def like(tensor: Tensor, values: Tensor) -> Tensor:
    """Return `values` as the same kind of tensor: parameter or not, trained or not, marks."""
    if isinstance(tensor, nn.Parameter):
        made: Tensor = torch.Tensor._make_subclass(type(tensor), values, tensor.requires_grad)
    else:
        made = values.requires_grad_(tensor.requires_grad)
    made.__dict__.update(tensor.__dict__)
    return made


def entries(modules: Iterable[nn.Module]) -> Iterable[Tensor]:
    """Yield every parameter and buffer of the modules, without submodules; some come twice."""
    for module in modules:
        for group in (module._parameters, module._buffers):
            yield from (tensor for tensor in group.values() if tensor is not None)


def replace(modules: Iterable[nn.Module], new: Mapping[int, Tensor]) -> None:
    """Replace tensors, by the id of the old one, in modules and in the lists that they hold."""
    for module in modules:
        for group in (module._parameters, module._buffers, vars(module)):
            for key, value in group.items():
                if isinstance(value, Tensor) and id(value) in new:
                    group[key] = new[id(value)]  # type: ignore[assignment]
        for value in vars(module).values():
            if isinstance(value, list):
                value[:] = [new.get(id(each), each) for each in value]


def skeleton(model: nn.Module) -> nn.Module:
    """Copy a model, with parameters and buffers on the meta device.

    Tied parameters stay tied; names, classes, attributes, marks, hooks and training flags are
    those of the model. Other tensors are the model's own, not copies, and so are objects that
    cannot be copied, such as a lock or a file.
    """
    memo = _without_values(model)
    try:
        return deepcopy(model, memo)
    except Exception:
        return deepcopy(model, _without_values(model) | _stubborn(model))


def _without_values(model: nn.Module) -> dict[int, Any]:
    """Return the replacement of each tensor, by id."""
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
    """Return attributes that cannot be copied, by id; each replaces itself."""
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
