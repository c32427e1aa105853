# SPDX-License-Identifier: Apache-2.0
"""Keeps the skeleton of a model as the model itself is set now.

Users set modules to evaluation, freeze parameters and change settings on the modules that they
have. Captures read the skeleton.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torch import Tensor, nn

_SCALARS = (bool, int, float, complex, str, bytes, type(None))


class Mirror:
    """Two copies of a model, module by module."""

    def __init__(self, model: nn.Module, skeleton: nn.Module) -> None:
        self._modules = list(zip(model.modules(), skeleton.modules(), strict=True))
        self._settings = list(_settings(self._modules))

    def update(self) -> None:
        """Take over plain attributes, modes and what is frozen; what only one has stays its own."""
        for real, bare in self._modules:
            _take(vars(real), vars(bare))
            for name, parameter in bare._parameters.items():
                own = real._parameters.get(name)
                if own is not None and parameter is not None:
                    parameter.requires_grad_(own.requires_grad)
        for settings, copied in self._settings:
            _take(vars(settings), vars(copied))


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
