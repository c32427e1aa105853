# SPDX-License-Identifier: Apache-2.0
"""Initialisation of this rank's stages, if the model was created without values.

A tensor without values is on the meta device. The new values do not depend on how the model is
split.

The modules' own initialisation runs: first `reset_parameters` of each module, as in PyTorch, then
`_init_weights` of the model around it, as in transformers. Both run on a copy of the whole model
(the skeleton), in which only the tensors of this rank's stages have memory.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from sagemaker_dist.errors import OptionError, raise_all
from smdist.modelparallel.torch.materialization.seeded_init import SeededInit, memory
from smdist.modelparallel.torch.materialization.skeleton import entries, like, replace, skeleton
from smdist.modelparallel.torch.randomness import generators_kept
from smdist.modelparallel.torch.tensor_splits import mark, split_of, unmark, whole_shape_of

_DONE = "_is_hf_initialized"  # transformers does not initialise tensors with this attribute
_HINT = "Load a checkpoint, define reset_parameters() in the module, or create the model on the CPU"


def materialize(
    model: nn.Module,
    stages: Mapping[int, nn.Module],
    *,
    seed: int = 0,
    device: torch.device | None = None,
    strict: bool = True,
) -> tuple[str, ...]:
    """Initialise the tensors of this rank's stages that are on the meta device.

    New tensors replace these tensors, in the model too, so an optimizer must get the new
    parameters. Tensors that have values already keep them. Tensors of other ranks' stages stay on
    the meta device. The new values do not depend on how the model is split.

    Args:
        model: The whole model, whose modules the stages share.
        stages: The stages of this rank, by number.
        seed: Seed of the whole training run.
        device: Device of the new tensors; None is the CPU.
        strict: True raises an error for a tensor that no module initialises. False, for use before
            a checkpoint is loaded, sets such a tensor to 0.

    Returns:
        Names of the tensors that no module initialised. A tied parameter is listed once, by the
        first of its names in the order of the model's modules.

    Raises:
        OptionError: The initialisation of a module fails. With `strict`, also if no module
            initialises a tensor; all such tensors are reported at once.
    """
    old = _wanted(model, stages)
    place = device or torch.device("cpu")
    new = {name: _zeros(tensor, place) for name, tensor in old.items()}
    left = _initialize(model, new, seed) if new else ()
    if strict:
        raise_all(_without_values(model, name) for name in left)
    made = {id(tensor): _part(new[name], tensor) for name, tensor in old.items()}
    for holder in (model, *stages.values()):
        replace(holder.modules(), made)
    return left


def _wanted(model: nn.Module, stages: Mapping[int, nn.Module]) -> dict[str, Tensor]:
    """Return the tensors of the stages that are on the meta device, by name in the model.

    A tied tensor is listed once, by the first of its names in the order of the model's modules.
    """
    names = _first_names(model)
    held = {id(tensor) for stage in stages.values() for tensor in entries(stage.modules())}
    return {
        names[id(tensor)]: tensor
        for tensor in entries(model.modules())
        if tensor.is_meta and id(tensor) in held
    }


def _first_names(model: nn.Module) -> dict[int, str]:
    names: dict[int, str] = {}
    for prefix, module in model.named_modules():
        for group in (module._parameters, module._buffers):
            for key, tensor in group.items():
                if tensor is not None:
                    names.setdefault(id(tensor), f"{prefix}.{key}" if prefix else key)
    return names


def _zeros(tensor: Tensor, device: torch.device) -> Tensor:
    """Return zeros for a tensor; for the part of a split tensor, in the shape of the whole one."""
    with torch.no_grad():
        if split_of(tensor) is None:
            bare = torch.empty_strided(
                tensor.shape, tensor.stride(), dtype=tensor.dtype, device=device
            ).zero_()
        else:
            bare = torch.zeros(whole_shape_of(tensor), dtype=tensor.dtype, device=device)
    made = like(tensor, bare)
    unmark(made)
    made.__dict__.pop(_DONE, None)
    return made


def _part(whole: Tensor, tensor: Tensor) -> Tensor:
    """Return this rank's part of an initialised tensor, or the tensor itself if it is not split.

    Args:
        whole: The initialised tensor.
        tensor: The tensor of the model that it replaces.
    """
    split = split_of(tensor)
    if split is None:
        return whole
    made = like(whole, split.part(whole.detach()))
    mark(made, split)
    return made


def _initialize(model: nn.Module, new: Mapping[str, Tensor], seed: int) -> tuple[str, ...]:
    bare = skeleton(model)
    places = {
        id(tensor): new[name] for tensor, name in _tensors(bare, _first_names(bare)) if name in new
    }
    replace(bare.modules(), places)
    names = {memory(tensor): name for tensor, name in _tensors(bare, _first_names(bare))}
    wanted = {id(tensor) for tensor in new.values()}
    mode = SeededInit(seed, names)
    with generators_kept(), torch.no_grad(), mode:
        for name, run in _initialisers(bare, wanted):
            mode.module = name
            _run(name, run)
    return tuple(name for name, t in new.items() if mode.written[name] < t.numel())


def _tensors(model: nn.Module, names: Mapping[int, str]) -> Iterator[tuple[Tensor, str]]:
    for tensor in entries(model.modules()):
        yield tensor, names[id(tensor)]


def _initialisers(model: nn.Module, wanted: set[int]) -> Iterator[tuple[str, Callable[[], Any]]]:
    """Yield the methods that initialise the wanted tensors, in the order in which they must run.

    Args:
        model: The skeleton of the model: a copy in which only wanted tensors have memory.
        wanted: Ids of the tensors to initialise.

    Yields:
        Name of a module, and a function without arguments that initialises it.
    """
    found = [
        (name, module, owner)
        for name, module, owner in _inside_out("", model, None, set())
        if any(id(tensor) in wanted for tensor in entries(module.modules()))
    ]
    for name, module, _ in found:
        reset = _method(module, "reset_parameters", 0) or _method(module, "_reset_parameters", 0)
        if reset is not None:
            yield name, reset
    for name, module, owner in found:
        if owner is not None:
            yield name, partial(owner, module)


def _inside_out(
    name: str, module: nn.Module, owner: Callable[..., Any] | None, seen: set[int]
) -> Iterator[tuple[str, nn.Module, Callable[..., Any] | None]]:
    """Yield a module and all modules inside it once, children first.

    Args:
        name: Name of the module in the model; "" for the model itself.
        module: The module.
        owner: Method `_init_weights` of an outer module; None if no outer module has this method.
        seen: Ids of the modules that were visited already. The function adds to this set.

    Yields:
        Name, module, and the method `_init_weights` for this module: its own method, or the method
        of an outer module, or None.
    """
    seen.add(id(module))
    owner = _method(module, "_init_weights", 1) or owner
    for key, child in module.named_children():
        if id(child) not in seen:
            yield from _inside_out(f"{name}.{key}" if name else key, child, owner, seen)
    yield name, module, owner


def _method(module: nn.Module, name: str, arguments: int) -> Callable[..., Any] | None:
    """Return a method of a module; None if it cannot be called with so many arguments.

    Args:
        module: The module.
        name: Name of the method.
        arguments: Number of positional arguments.
    """
    if not callable(getattr(type(module), name, None)):
        return None
    method: Callable[..., Any] = getattr(module, name)
    try:
        inspect.signature(method).bind(*range(arguments))
    except TypeError:
        return None
    return method


def _run(name: str, initialise: Callable[[], Any]) -> None:
    try:
        initialise()
    except Exception as error:
        raise OptionError(
            f"{name or 'the model'!r} cannot be initialised",
            "the model was created on the meta device, and its initialisation function raised "
            f"{type(error).__name__}: {error}",
            _HINT,
            about=name or (),
            kind="failed",
        ) from error


def _without_values(model: nn.Module, name: str) -> OptionError:
    module = model.get_submodule(name.rpartition(".")[0])
    return OptionError(
        f"{name!r} has no values",
        f"the model was created without values, and neither {type(module).__name__} nor a module "
        "around it has a method that initialises it",
        _HINT,
        about=name,
        kind="no_values",
    )
