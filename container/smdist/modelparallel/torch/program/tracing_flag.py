# SPDX-License-Identifier: Apache-2.0
"""Flag that is set while a model's forward pass is only recorded: `smp.is_tracing`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

_is_tracing: ContextVar[bool] = ContextVar("is_tracing", default=False)


def is_tracing() -> bool:
    """Return True if the calling forward function is being recorded, on tensors without values.

    A model can check this to skip side effects, such as writing a log. SMP v1 has the same
    function.
    """
    return _is_tracing.get()


@contextmanager
def tracing() -> Iterator[None]:
    """Make `is_tracing()` return True within the block, in this thread."""
    token = _is_tracing.set(True)
    try:
        yield
    finally:
        _is_tracing.reset(token)
