# SPDX-License-Identifier: Apache-2.0
"""What a model holds besides its weights, so that a forward pass leaves no trace.

Forward functions may count calls, keep a tensor for later or append to a list. Capture runs them
once without numbers: whatever they leave behind is found by comparison, and taken away again.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from torch import nn

_CONTAINERS = (list, dict, set)


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The attributes of one module, and what lists, dicts and sets among them hold."""

    module: nn.Module
    attributes: dict[str, Any]
    contents: dict[str, Any]

    def differences(self) -> list[str]:
        """Attributes that are other objects now, or hold others."""
        now = self.module.__dict__
        names = [name for name in {**self.attributes, **now} if self._differs(name, now)]
        return sorted(names)

    def restore(self) -> None:
        """Put everything back as it was."""
        for name, content in self.contents.items():
            _refill(self.attributes[name], content)
        self.module.__dict__.clear()
        self.module.__dict__.update(self.attributes)

    def _differs(self, name: str, now: dict[str, Any]) -> bool:
        if name not in now or name not in self.attributes:
            return True
        if not _is_same(now[name], self.attributes[name]):
            return True
        return name in self.contents and not _holds_same(now[name], self.contents[name])


def snapshot(module: nn.Module) -> Snapshot:
    """How one module is right now."""
    attributes = dict(module.__dict__)
    contents = {
        name: value.copy() for name, value in attributes.items() if isinstance(value, _CONTAINERS)
    }
    return Snapshot(module, attributes, contents)


def snapshots(modules: Iterable[nn.Module]) -> list[Snapshot]:
    """How several are."""
    return [snapshot(module) for module in modules]


def _is_same(one: Any, other: Any) -> bool:
    if one is other:
        return True
    return type(one) is type(other) and isinstance(one, (bool, int, float, str)) and one == other


def _holds_same(now: Any, before: Any) -> bool:
    if len(now) != len(before):
        return False
    if isinstance(now, dict):
        return all(key in now and _is_same(now[key], value) for key, value in before.items())
    if isinstance(now, set):
        return bool(now == before)
    return all(map(_is_same, now, before))


def _refill(container: Any, content: Any) -> None:
    if isinstance(container, list):
        container[:] = content
    elif not _holds_same(container, content) or list(container) != list(content):
        container.clear()
        container.update(content)
