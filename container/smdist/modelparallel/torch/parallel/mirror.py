# SPDX-License-Identifier: Apache-2.0
"""Keeps the skeleton of a model as the model itself is set now.

Users set modules to evaluation, freeze parameters and change settings on the modules that they
have. Captures read the skeleton. It is looked after in each step, so what can be compared is
found once.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torch import Tensor, nn

from sagemaker_dist.errors import OptionError

_SCALARS = (bool, int, float, complex, str, bytes, type(None))
_Pair = tuple[dict[str, Any], dict[str, Any], tuple[str, ...]]  # source, copy, what to compare


class Mirror:
    """Two copies of a model, module by module.

    Attributes:
        version: Grows when something was taken over.
    """

    def __init__(self, model: nn.Module, skeleton: nn.Module) -> None:
        self.version = 0
        self._model = model
        self._modules = dict(model.named_modules())
        self._children = [(m, tuple(m._modules.values())) for m in self._modules.values()]
        modules = list(zip(model.modules(), skeleton.modules(), strict=True))
        self._pairs = [_pair(real, bare) for real, bare in (*modules, *_settings(modules))]
        self._parameters = list(zip(self._modules, modules, strict=True))

    def update(self) -> None:
        """Take over plain attributes, modes and what is frozen; what only one has stays its own.

        Raises:
            OptionError: The model has other modules or parameters than when it was cut.
        """
        for module, children in self._children:
            if tuple(module._modules.values()) != children:
                raise _changed(self._model, self._difference())
        for source, copy, names in self._pairs:
            for name in names:
                value = source.get(name)
                if value is not copy[name] and isinstance(value, _SCALARS):
                    self.version += value != copy[name]
                    copy[name] = value
        for name, (real, bare) in self._parameters:
            self._take(name, real._parameters, bare._parameters)

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
        "stages run the modules and parameters of the first step",
        "Change the model before its first step, or wrap the new one",
    )


def _pair(source: object, copy: object) -> _Pair:
    names = (name for name, value in vars(copy).items() if isinstance(value, _SCALARS))
    return vars(source), vars(copy), tuple(names)


def _settings(modules: list[tuple[nn.Module, nn.Module]]) -> Iterator[tuple[Any, Any]]:
    """Objects with settings that modules hold, such as a configuration; each once."""
    seen: set[int] = set()
    for real, bare in modules:
        for name, value in vars(real).items():
            other = vars(bare).get(name)
            is_pair = hasattr(value, "__dict__") and type(value) is type(other)
            is_other = not isinstance(value, (Tensor, nn.Module, type)) and value is not other
            if is_pair and is_other and id(value) not in seen:
                seen.add(id(value))
                yield value, other
