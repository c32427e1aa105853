# SPDX-License-Identifier: Apache-2.0
"""A model without its values: the whole of it, on every rank, for no memory.

A rank that has let go of most of a model meets a batch of another shape: forward functions must
run once more, all of them. They run on this copy.
"""

from __future__ import annotations

from copy import deepcopy
from typing import Any

from torch import Tensor, nn

from smdist.modelparallel.torch.capture.probe import STANDS_IN
from smdist.modelparallel.torch.residence.tensors import entries, hollow


def skeleton(model: nn.Module) -> nn.Module:
    """Copy a model; parameters and buffers are on the meta device.

    What is tied stays tied, and names, classes, attributes, marks, hooks and training flags are
    those of the model. Other tensors that it holds are the model's own, not copies, and so is
    what cannot be copied, such as a lock or a file.
    """
    memo = _without_values(model)
    try:
        return deepcopy(model, memo)
    except Exception:
        return deepcopy(model, _without_values(model) | _stubborn(model))


def _without_values(model: nn.Module) -> dict[int, Any]:
    """What stands for each tensor."""
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
    """Attributes that cannot be copied, by id: they stand for themselves."""
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
