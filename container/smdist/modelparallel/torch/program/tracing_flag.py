# SPDX-License-Identifier: Apache-2.0
"""Flag for code in a model: set while the model runs only to be captured."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

_is_tracing: ContextVar[bool] = ContextVar("is_tracing", default=False)


def is_tracing() -> bool:
    """Tell whether the calling forward function is being captured, on tensors without numbers.

    A model can check it, as in SMP, to leave out side effects such as writing a log.
    """
    return _is_tracing.get()


@contextmanager
def tracing() -> Iterator[None]:
    """Set the flag within the block."""
    token = _is_tracing.set(True)
    try:
        yield
    finally:
        _is_tracing.reset(token)
