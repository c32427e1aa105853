# SPDX-License-Identifier: Apache-2.0
"""Keeps the skeleton of a model as the model itself is set now.

Users set modules to evaluation, freeze parameters and change settings on the modules that they
have. Captures read the skeleton.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torch import Tensor, nn

from sagemaker_dist.errors import OptionError

_SCALARS = (bool, int, float, complex, str, bytes, type(None))


class Mirror:
    """Two copies of a model, module by module."""

    def __init__(self, model: nn.Module, skeleton: nn.Module) -> None:
        self._model, self._names = model, [name for name, _ in model.named_modules()]
        self._modules = list(zip(model.modules(), skeleton.modules(), strict=True))
        self._settings = list(_settings(self._modules))

    def update(self) -> None:
        """Take over plain attributes, modes and what is frozen; what only one has stays its own.

        Raises:
            OptionError: The model has other modules or parameters than when it was cut.
        """
        self._check()
        for real, bare in self._modules:
            _take(vars(real), vars(bare))
            for name, parameter in bare._parameters.items():
                own = real._parameters.get(name)
                if own is not None and parameter is not None:
                    parameter.requires_grad_(own.requires_grad)
        for settings, copied in self._settings:
            _take(vars(settings), vars(copied))

    def _check(self) -> None:
        """Whether stages still hold what the model is made of."""
        now = list(self._model.modules())
        was = [real for real, _ in self._modules]
        if len(now) != len(was) or any(a is not b for a, b in zip(now, was, strict=True)):
            raise _changed(self._model, self._difference())
        for (real, bare), name in zip(self._modules, self._names, strict=True):
            if real._parameters.keys() != bare._parameters.keys():
                raise _changed(self._model, f"{name!r} has other parameters")
            for key, own in real._parameters.items():
                kept = bare._parameters[key]
                if own is not None and kept is not None and own.shape != kept.shape:
                    shapes = f"{tuple(own.shape)}, not {tuple(kept.shape)}"
                    raise _changed(self._model, f"{f'{name}.{key}'.lstrip('.')!r} is {shapes}")

    def _difference(self) -> str:
        now = dict(self._model.named_modules())
        was = {name: real for name, (real, _) in zip(self._names, self._modules, strict=True)}
        found = [name for name in {**was, **now} if now.get(name) is not was.get(name)]
        more = f" and {len(found) - 1} more" if len(found) > 1 else ""
        return f"{found[0]!r}{more} is new, gone or another module" if found else "modules moved"


def _changed(model: nn.Module, how: str) -> OptionError:
    return OptionError(
        f"{type(model).__name__} changed after it was cut: {how}",
        "stages run the modules and parameters of the first step",
        "Change the model before its first step, or wrap the new one",
    )


def _take(source: dict[str, Any], target: dict[str, Any]) -> None:
    for name, value in source.items():
        if name in target and isinstance(value, _SCALARS) and target[name] is not value:
            target[name] = value


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
