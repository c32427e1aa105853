# SPDX-License-Identifier: Apache-2.0
"""Choice of the units: modules that are never split between stages.

Elements of module lists are the repeated blocks of a model, so they are units. Outside lists, a
module without submodules is a unit. Some models, such as ResNet, have groups of blocks: lists
inside the elements of a list. There the elements of the inner list are the units:

    stages: ModuleList          outer list
      0: Stage                  group: contains a list of equal blocks, so it is no unit
        layers: Sequential      inner list
          0: Bottleneck         block: a unit

But a group is a unit as a whole if a split between its blocks is expensive; see `crowded`.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import nn
from torch.nn.utils.parametrize import ParametrizationList

_LISTS = (nn.ModuleList, nn.Sequential, nn.ModuleDict)
_OPEN = (nn.Transformer, nn.TransformerEncoder, nn.TransformerDecoder)


def default_units(model: nn.Module, *, opened: frozenset[str], closed: frozenset[str]) -> set[str]:
    """Return the names of the units: modules that are never split between stages.

    By default these are elements of module lists, and modules without submodules.

    Args:
        model: The whole model.
        opened: Names of modules that are no units. Modules inside them are units instead.
        closed: Names of modules that must be units, also inside an opened module.
    """
    return set(_walk("", model, opened | {""}, closed - {""}))


def composite_elements(model: nn.Module) -> set[str]:
    """Return the names of groups of blocks, such as the stages of a ResNet.

    Such a group is an element of a module list, and contains a list of modules of one class, the
    blocks. The group may be split between two blocks.
    """
    return {
        f"{name}.{key}" if name else key
        for name, module in model.named_modules()
        if isinstance(module, _LISTS)
        for key, element in module.named_children()
        if _holds_blocks(element)
    }


def _walk(
    name: str, module: nn.Module, opened: frozenset[str], closed: frozenset[str]
) -> Iterator[str]:
    for key, child in module.named_children():
        path = f"{name}.{key}" if name else key
        if path in closed:
            yield path
        elif path in opened or not _is_unit(module, child):
            yield from _walk(path, child, opened, closed)
        else:
            yield path


def _is_unit(parent: nn.Module, module: nn.Module) -> bool:
    if isinstance(module, (nn.ModuleList, nn.ModuleDict)):
        return False
    return isinstance(parent, _LISTS) or _is_leaf(module)


def _is_leaf(module: nn.Module) -> bool:
    if all(name == "parametrizations" for name, _ in module.named_children()):
        return True
    if isinstance(module, (torch.jit.ScriptModule, ParametrizationList)):
        return True
    if type(module).__name__ == "OptimizedModule" or module._compiled_call_impl is not None:
        return True
    is_ours = type(module).__module__.startswith("torch.nn.")
    return is_ours and not isinstance(module, (*_LISTS, *_OPEN))


def _holds_blocks(element: nn.Module) -> bool:
    return any(
        len({type(block) for block in inner.children()}) == 1
        and not any(_is_leaf(block) for block in inner.children())
        for inner in element.modules()
        if isinstance(inner, _LISTS)
    )
