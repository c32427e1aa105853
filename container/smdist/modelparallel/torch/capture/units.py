# SPDX-License-Identifier: Apache-2.0
"""Which modules are kept whole.

Elements of lists are the repeated blocks of a model, so they are units; everywhere else leaf
modules are. Where blocks stand in stages, as in a ResNet, the list inside is meant:

    stages: ModuleList          outer list: its elements hold lists of equal composite modules,
      0: Stage                  so they are opened ...
        layers: Sequential
          0: Bottleneck         ... down to here: what it holds is no list of such modules, or
            layer: Sequential   more values than one would cross from one element to the next
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import nn
from torch.nn.utils.parametrize import ParametrizationList

_LISTS = (nn.ModuleList, nn.Sequential, nn.ModuleDict)
_OPEN = (nn.Transformer, nn.TransformerEncoder, nn.TransformerDecoder)


def default_units(model: nn.Module, *, opened: frozenset[str], closed: frozenset[str]) -> set[str]:
    """Names of the units.

    Args:
        model: The whole model.
        opened: Modules to go into in any case.
        closed: Modules to keep whole in any case; below an opened one too.
    """
    return set(_walk("", model, opened | {""}, closed - {""}))


def composite_elements(model: nn.Module) -> set[str]:
    """Elements of lists that hold lists of equal composite modules: stages, it seems."""
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
