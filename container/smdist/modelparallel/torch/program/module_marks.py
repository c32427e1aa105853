# SPDX-License-Identifier: Apache-2.0
"""Marks that modules get while a `with` block runs: a value in an attribute of each new module.

While any such block runs, `nn.Module.__init__` marks each module that is made in the same thread.
Copies and pickles of a module have its marks too; its state dict has not.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from threading import Lock
from typing import Any, Final, Generic, TypeVar

from torch import nn

Value = TypeVar("Value")

# Values of the blocks that run, by the attribute that they set.
_values: ContextVar[dict[str, Any]] = ContextVar("values")
_lock = Lock()
_plain_init = nn.Module.__init__
_num_blocks = 0


class ModuleMark(Generic[Value]):
    """One kind of mark.

    Args:
        attribute: Name of the attribute of modules.
    """

    def __init__(self, attribute: str) -> None:
        self.attribute: Final = attribute

    def get(self, module: nn.Module) -> Value | None:
        """Return the mark of a module; None if it has none."""
        return module.__dict__.get(self.attribute)

    def set(self, module: nn.Module, value: Value) -> None:
        """Mark one module."""
        module.__dict__[self.attribute] = value

    @contextmanager
    def on_new_modules(self, value: Value) -> Iterator[None]:
        """Mark all modules that are made in the block; in nested blocks, the innermost one counts.

        Args:
            value: Value of the mark.
        """
        token = _values.set({**_values.get({}), self.attribute: value})
        _count_blocks(1)
        try:
            yield
        finally:
            _count_blocks(-1)
            _values.reset(token)


def _count_blocks(change: int) -> None:
    """Count the blocks that run in all threads, and patch `nn.Module.__init__` while there are any.

    Args:
        change: 1 when a block begins, -1 when it ends.
    """
    global _num_blocks, _plain_init
    with _lock:
        if not _num_blocks:
            _plain_init = nn.Module.__init__
            nn.Module.__init__ = _marking_init  # type: ignore[method-assign, assignment]
        _num_blocks += change
        if not _num_blocks:
            nn.Module.__init__ = _plain_init  # type: ignore[method-assign]


def _marking_init(module: nn.Module, *args: Any, **options: Any) -> None:
    _plain_init(module, *args, **options)
    module.__dict__.update(_values.get({}))
