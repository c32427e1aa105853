# SPDX-License-Identifier: Apache-2.0
"""Snapshots of modules and of random states, so that capture leaves everything unchanged.

Forward functions may count calls, store a tensor in an attribute or append to a list. Capture runs
them on fake tensors, finds such changes by comparison with a snapshot, and undoes them.
"""

from __future__ import annotations

import logging
import random
import sys
import warnings
from collections.abc import Hashable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

_CONTAINERS = (list, dict, set)


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Copy of a module's attributes, and of the contents of its lists, dicts and sets."""

    module: nn.Module
    attributes: dict[str, Any]
    contents: dict[str, Any]

    def differences(self) -> list[str]:
        """Return the names of the module's attributes that changed since the snapshot."""
        now = self.module.__dict__
        names = [name for name in {**self.attributes, **now} if self._differs(name, now)]
        return sorted(names)

    def restore(self) -> None:
        """Restore the module's attributes, and the contents of its lists, dicts and sets."""
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
    """Return a snapshot of one module's present attributes."""
    attributes = dict(module.__dict__)
    contents = {
        name: value.copy() for name, value in attributes.items() if isinstance(value, _CONTAINERS)
    }
    return Snapshot(module, attributes, contents)


def snapshots(modules: Iterable[nn.Module]) -> list[Snapshot]:
    """Return a snapshot of each module."""
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


def python_draws() -> Hashable:
    """Return the state of the random generators of Python and NumPy, and the seed of PyTorch.

    The value changes if Python or NumPy draws a random number, or PyTorch gets a new seed.
    """
    _, numbers, gauss = random.getstate()
    seed = torch.initial_seed()
    numpy = sys.modules.get("numpy")
    if numpy is None:
        return seed, numbers[0], numbers[-1], gauss
    _, keys, *rest = numpy.random.get_state()
    return seed, numbers[0], numbers[-1], gauss, int(keys[0]), *rest


@contextmanager
def untouched() -> Iterator[None]:
    """Restore all random states after the block; hide warnings and PyTorch's logs within it.

    Use it for a run in which a model is only recorded. Warnings of the model appear in later runs.
    """
    ours, numpy = random.getstate(), sys.modules.get("numpy")
    theirs = numpy.random.get_state() if numpy else None
    log = logging.getLogger("torch._subclasses.fake_tensor")
    level = log.level
    log.setLevel(logging.CRITICAL)
    try:
        with torch.random.fork_rng(devices=()), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        log.setLevel(level)
        random.setstate(ours)
        if numpy is not None:
            numpy.random.set_state(theirs)


@contextmanager
def uncompiled() -> Iterator[None]:
    """Run functions of `torch.compile` without compilation in the block.

    The compiler is not imported if the program has not imported it yet.
    """
    with ExitStack() as stack:
        if "torch._dynamo" in sys.modules:
            stack.enter_context(torch.compiler.set_stance("force_eager"))
        yield
