# SPDX-License-Identifier: Apache-2.0
"""Kinds of calls in a forward pass.

Calls of one kind cost the same, so only one of them is measured.

A unit is a module that is called as a whole. Two units are of one kind if they get arguments of the
same shapes, and if the unit and all modules inside it have the same

* class and `extra_repr()`;
* mode (training or evaluation);
* attributes that are numbers, strings, dtypes or functions;
* shapes of parameters and buffers.

Layer numbers in attributes such as `layer_idx` are not compared.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Hashable, Mapping
from types import BuiltinFunctionType, FunctionType
from typing import Any

import torch
from torch import Tensor, nn

from smdist.modelparallel.torch.program.program import Argument, Call, ModelTensor, Program, Ref

_NUMBERING = re.compile(r"(.*_)?(idx|index|number)")
_PLAIN = (bool, int, float, str, torch.dtype)


def kind(call: Call, program: Program, model: nn.Module, wanted: frozenset[int]) -> Hashable:
    """Return a key of a call; calls with equal keys cost the same.

    Args:
        call: A call of the program.
        program: The program, with the shapes of all values.
        model: The model, with the modules of the units.
        wanted: Positions of the results that receive a gradient in the backward pass.
    """
    position = {name: i for i, name in enumerate(call.reads)}
    return (
        call.function or module_kind(model.get_submodule(call.module)),
        call.form,
        tuple(_argument(each, position, program, model) for each in call.arguments),
        tuple(at for at, _ in call.changed),
        call.modes,
        repr(call.checkpoint),
        wanted,
    )


def module_kind(module: nn.Module) -> Hashable:
    """Return a key of a module; modules with equal keys differ only in values of tensors."""
    return tuple((name, *_own(part)) for name, part in module.named_modules())


def held(name: str, model: nn.Module) -> Tensor:
    """Return the parameter, buffer or tensor attribute of a model that has this name."""
    prefix, _, last = name.rpartition(".")
    found = getattr(model.get_submodule(prefix), last)
    assert isinstance(found, Tensor)
    return found


def _own(part: nn.Module) -> tuple[Any, ...]:
    tensors = [*part.named_parameters(recurse=False), *part.named_buffers(recurse=False)]
    shapes = tuple((name, *_tensor(tensor)) for name, tensor in tensors)
    return type(part), part.training, part.extra_repr(), shapes, _attributes(vars(part))


def _attributes(found: Mapping[str, Any]) -> Hashable:
    return tuple(
        (name, _plain(value))
        for name, value in sorted(found.items())
        if not name.startswith("_") and not _NUMBERING.fullmatch(name)
    )


def _plain(value: Any) -> Any:
    if isinstance(value, (FunctionType, BuiltinFunctionType)):
        return value.__module__, value.__qualname__
    if isinstance(value, (tuple, list)):
        return tuple(_plain(each) for each in value)
    return value if isinstance(value, _PLAIN) else type(value)


def _argument(
    source: Argument, position: Mapping[str, int], program: Program, model: nn.Module
) -> Hashable:
    if isinstance(source, Ref):
        return position[source.value], program.facts[source.value]
    if isinstance(source, ModelTensor):
        return _tensor(held(source.name, model))
    return _constant(source.value)


def _constant(value: Any) -> Hashable:
    if isinstance(value, Tensor):
        return _tensor(value)
    if isinstance(value, Callable):  # type: ignore[arg-type]
        return id(value)
    return (type(value), value) if isinstance(value, Hashable) else repr(value)


def _tensor(tensor: Tensor) -> tuple[Hashable, ...]:
    strides = tuple(tensor.stride()) if tensor.layout is torch.strided else ()
    return tuple(tensor.shape), strides, tensor.dtype, tensor.requires_grad
