# SPDX-License-Identifier: Apache-2.0
"""Synchronization of a model's skeleton with the model itself.

Users set modules to evaluation mode, freeze parameters and change settings on their modules, but
captures read the skeleton. It is updated in each step, so the attributes that can be compared are
found only once.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from copy import deepcopy
from typing import Any, Final

from torch import Tensor, nn

from sagemaker_dist.errors import OptionError
from smdist.modelparallel.torch.capture.signature import OTHER, own_attributes, plain

_GONE: Final = object()


class SkeletonSync:
    """Pair of a model and its skeleton, compared module by module.

    Args:
        units: Names of modules that stages run whole. Settings of other modules were read in the
            capture, so their other objects must not change.
        own_units: Names of the units that run on this rank.

    Attributes:
        version: Number that grows whenever the skeleton has taken over a change.
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
        self._pairs = [_Pair(real, bare) for real, bare in (*modules, *_settings(modules))]
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
        """Take over plain attributes, modes and frozen parameters from the model.

        Raises:
            OptionError: The model has other modules or parameters than when it was cut, or other
                objects that its forward function may have read.
        """
        for module, children in self._children:
            if tuple(module._modules.values()) != children:
                raise _changed(self._model, self._difference())
        for module, attributes, others in self._fixed:
            for key, value in others.items():
                if attributes.get(key) is not value:
                    how = f"{f'{module}.{key}'.lstrip('.')!r} is another {type(value).__name__}"
                    raise _changed(self._model, how)
        for pair in self._pairs:
            self.version += pair.update()
        for name, (real, bare) in self._parameters:
            self._take(name, real._parameters, bare._parameters)

    def let_go(self) -> None:
        """Stop following attributes that units changed while they ran, such as counters.

        Otherwise each step would be a new call, for which the model is captured again.
        """
        for pair in self._running:
            pair.let_go()

    def _take(self, module: str, real: dict[str, Any], bare: dict[str, Any]) -> None:
        if real.keys() != bare.keys():
            raise _changed(self._model, f"{module!r} has other parameters")
        for key, own in real.items():
            copy = bare[key]
            if own is None or copy is None:
                continue
            if own.requires_grad is not copy.requires_grad:
                copy.requires_grad_(own.requires_grad)
                self.version += 1
            if own.shape != copy.shape:
                how = f"{tuple(own.shape)}, not {tuple(copy.shape)}"
                raise _changed(self._model, f"{f'{module}.{key}'.lstrip('.')!r} is {how}")

    def _difference(self) -> str:
        now, was = dict(self._model.named_modules()), self._modules
        found = [name for name in {**was, **now} if now.get(name) is not was.get(name)]
        more = f" and {len(found) - 1} more" if len(found) > 1 else ""
        return f"{found[0]!r}{more} is new, gone or another module" if found else "modules moved"


def _changed(model: nn.Module, how: str) -> OptionError:
    return OptionError(
        f"{type(model).__name__} changed after it was cut: {how}",
        "stages run the modules, parameters and objects of the first step",
        "Change the model before its first step, or wrap the new one",
    )


class _Pair:
    """Attributes of a module, or of an object with settings, and those of its copy."""

    def __init__(self, source: object, copy: object) -> None:
        self._source, self._copy = vars(source), vars(copy)
        found = own_attributes(copy)
        self._names = {name for name, value in found.items() if plain(value) is not OTHER}
        self._known = frozenset(self._source)

    def update(self) -> bool:
        """Take over settings that changed, are new or are gone; return True if there were any."""
        if self._source.keys() != self._known:
            self._names |= self._source.keys() - self._known
            self._known = frozenset(self._source)
        taken = [self._take(name) for name in tuple(self._names)]
        return any(taken)

    def let_go(self) -> None:
        """Stop following settings that are new or have changed since the last update."""
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
    """Return the attributes of a module that are not settings."""
    return {name: value for name, value in own_attributes(module).items() if plain(value) is OTHER}


def _settings(modules: list[tuple[nn.Module, nn.Module]]) -> Iterator[tuple[Any, Any]]:
    """Return the objects with settings that modules hold, such as a configuration; each once."""
    seen: set[int] = set()
    for real, bare in modules:
        for name, value in vars(real).items():
            other = vars(bare).get(name)
            is_pair = hasattr(value, "__dict__") and type(value) is type(other)
            is_other = not isinstance(value, (Tensor, nn.Module, type)) and value is not other
            if is_pair and is_other and id(value) not in seen:
                seen.add(id(value))
                yield value, other
