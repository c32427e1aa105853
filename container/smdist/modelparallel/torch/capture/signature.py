# SPDX-License-Identifier: Apache-2.0
"""Signature of a model call: shapes, types and settings that a recorded program depends on.

A forward function branches on shapes, on `self.training`, on other attributes of modules and on
objects in the batch that are no tensors. A program contains only the branches that were taken when
it was recorded. So a call with another signature needs another recording.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterator
from copy import deepcopy
from enum import Enum
from types import BuiltinFunctionType, FunctionType
from typing import Any, Final

import torch
from torch import Tensor, nn

from sagemaker_dist.errors import OptionError
from smdist.modelparallel.torch.program.program import current_modes
from smdist.modelparallel.torch.program.pytree import flatten

_SCALARS = (bool, int, float, complex, str, bytes, type(None))
_ATOMS = (
    *_SCALARS, Enum, type, torch.dtype, torch.device, FunctionType, BuiltinFunctionType
)  # fmt: skip
_MODULES_OWN = frozenset(vars(nn.Module())) - {"training"}
_DEPTH = 8  # levels of nested lists
OTHER: Final = object()
_GONE: Final = object()


def signature(model: nn.Module, arguments: tuple[Any, Any]) -> Hashable:
    """Return a key of one model call; calls with equal keys can use the same recorded program.

    Args:
        model: The model; its modes, plain attributes and hooks are part of the key.
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
    """Return the attributes of an object by name.

    Internal attributes that every `nn.Module` has are left out, except `training`.
    """
    return {name: value for name, value in vars(holder).items() if name not in _MODULES_OWN}


def _leaf(leaf: Any) -> Hashable:
    if isinstance(leaf, Tensor):
        return tuple(leaf.shape), leaf.dtype, leaf.device, leaf.requires_grad
    return (type(leaf), leaf) if isinstance(leaf, _SCALARS) else (type(leaf), id(leaf))


def _settings(model: nn.Module) -> Iterator[Hashable]:
    """Yield the settings of each module: its comparable attributes, and whether it has hooks.

    Comparable attributes are numbers, strings, functions, and containers of these. The comparable
    attributes of a configuration object, or of another object in a module, are yielded as well.
    """
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


class SkeletonSync:
    """Copier of settings from a model to its skeleton: a copy of the model without values.

    Users change settings of the model, but later its forward pass is recorded with the skeleton.

    Args:
        model: The user's model.
        skeleton: Copy of the model without values, with the same modules.
        units: Names of the modules that are not split between stages.
        own_units: Names of the `units` that run on this rank. If such a module changes its own
            attributes, such as a counter, `ignore_changes` stops copying these attributes.

    Attributes:
        version: Number that grows with each change of the skeleton.
    """

    def __init__(
        self,
        model: nn.Module,
        skeleton: nn.Module,
        units: Collection[str] = (),
        own_units: Collection[str] = (),
    ) -> None:
        self.version = 0
        self._model = model
        self._modules = dict(model.named_modules())
        self._children = [(m, tuple(m._modules.values())) for m in self._modules.values()]
        modules = list(zip(model.modules(), skeleton.modules(), strict=True))
        self._pairs = [_Pair(real, bare) for real, bare in (*modules, *_setting_objects(modules))]
        own = tuple(f"{unit}." for unit in own_units)
        self._running = [
            pair
            for name, pair in zip(self._modules, self._pairs, strict=False)
            if name in own_units or name.startswith(own)
        ]
        inside = tuple(f"{unit}." for unit in units)
        self._fixed = [
            (name, vars(module), _others(module))
            for name, module in self._modules.items()
            if name not in units and not name.startswith(inside)
        ]
        self._parameters = list(zip(self._modules, modules, strict=True))

    def update(self) -> None:
        """Copy the model's settings to the skeleton: a copy of the model without values.

        Settings are `requires_grad` flags, and attributes with numbers, strings, functions or
        containers of these.

        Raises:
            OptionError: Modules, parameters or other objects of the model were replaced after the
                model was split.
        """
        for module, children in self._children:
            if tuple(module._modules.values()) != children:
                raise _changed(self._model, *self._difference())
        for module, attributes, others in self._fixed:
            for key, value in others.items():
                if attributes.get(key) is not value:
                    name = f"{module}.{key}".lstrip(".")
                    how = f"{name!r} is another {type(value).__name__}"
                    raise _changed(self._model, how, name)
        for pair in self._pairs:
            self.version += pair.update()
        for name, (real, bare) in self._parameters:
            self._take(name, real._parameters, bare._parameters)

    def ignore_changes(self) -> None:
        """Stop copying attributes that modules changed while they ran, such as counters.

        With a changed attribute, the model would have to be recorded again in each step.
        """
        for pair in self._running:
            pair.ignore_changes()

    def _take(self, module: str, real: dict[str, Any], bare: dict[str, Any]) -> None:
        if real.keys() != bare.keys():
            raise _changed(self._model, f"{module!r} has other parameters", module)
        for key, own in real.items():
            copy = bare[key]
            if own is None or copy is None:
                continue
            if own.requires_grad is not copy.requires_grad:
                copy.requires_grad_(own.requires_grad)
                self.version += 1
            if own.shape != copy.shape:
                name = f"{module}.{key}".lstrip(".")
                how = f"{name!r} is {tuple(own.shape)}, not {tuple(copy.shape)}"
                raise _changed(self._model, how, name)

    def _difference(self) -> tuple[str, str]:
        """Return which modules differ, as a text, and the name of the first such module."""
        now, was = dict(self._model.named_modules()), self._modules
        found = [name for name in {**was, **now} if now.get(name) is not was.get(name)]
        more = f" and {len(found) - 1} more" if len(found) > 1 else ""
        if not found:
            return "modules moved", ""
        return f"{found[0]!r}{more} is new, gone or another module", found[0]


def _changed(model: nn.Module, how: str, name: str) -> OptionError:
    return OptionError(
        f"{type(model).__name__} changed after it was split into stages; {how}",
        "the stages still run the modules, parameters and objects of the first step",
        "Change the model before its first step, or wrap the changed model again",
        about=name or (),
        kind="changed",
    )


class _Pair:
    """Pair of an object in the model and the object's copy, which gets the same settings.

    The object is a module, or another object with settings, such as a configuration.
    """

    def __init__(self, source: object, copy: object) -> None:
        self._source, self._copy = vars(source), vars(copy)
        found = own_attributes(copy)
        self._names = {name for name, value in found.items() if plain(value) is not OTHER}
        self._known = frozenset(self._source)

    def update(self) -> bool:
        """Copy changed settings from the model's object to its copy.

        A setting that was removed from the object is removed from the copy.

        Returns:
            True if at least one setting was copied or removed.
        """
        if self._source.keys() != self._known:
            self._names |= self._source.keys() - self._known
            self._known = frozenset(self._source)
        taken = [self._take(name) for name in tuple(self._names)]
        return any(taken)

    def ignore_changes(self) -> None:
        """Exclude settings from `update` if they were added or changed since the last `update`."""
        self._known = frozenset(self._source)
        self._names -= {name for name in self._names if self._differs(name)}

    def _differs(self, name: str) -> bool:
        value, own = self._source.get(name, _GONE), self._copy.get(name, _GONE)
        return value is not own and plain(value) != plain(own)

    def _take(self, name: str) -> bool:
        value, own = self._source.get(name, _GONE), self._copy.get(name, _GONE)
        if value is own:
            return False
        if value is _GONE:
            del self._copy[name]
            self._names.discard(name)
            return True
        key = plain(value)
        if key is OTHER or key == plain(own):
            return False
        self._copy[name] = deepcopy(value)
        return True


def _others(module: nn.Module) -> dict[str, Any]:
    """Return a module's attributes other than numbers, strings and containers of these, by name."""
    return {name: value for name, value in own_attributes(module).items() if plain(value) is OTHER}


def _setting_objects(modules: list[tuple[nn.Module, nn.Module]]) -> Iterator[tuple[Any, Any]]:
    """Yield each object with settings that a module holds, such as a configuration, and its copy.

    Args:
        modules: Pairs of a module and its copy.
    """
    seen: set[int] = set()
    for real, bare in modules:
        for name, value in vars(real).items():
            other = vars(bare).get(name)
            is_pair = hasattr(value, "__dict__") and type(value) is type(other)
            is_other = not isinstance(value, (Tensor, nn.Module, type)) and value is not other
            if is_pair and is_other and id(value) not in seen:
                seen.add(id(value))
                yield value, other
