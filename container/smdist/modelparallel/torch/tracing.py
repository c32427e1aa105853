# SPDX-License-Identifier: Apache-2.0
"""Whether a model runs to be recorded, and not to compute."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

_is_tracing: ContextVar[bool] = ContextVar("is_tracing", default=False)


def is_tracing() -> bool:
    """Whether the forward function that calls this is being recorded, on tensors without numbers.

    As in SMP, a model can ask it for what must not happen then, such as writing a log.
    """
    return _is_tracing.get()


@contextmanager
def tracing() -> Iterator[None]:
    """What runs within is recorded."""
    token = _is_tracing.set(True)
    try:
        yield
    finally:
        _is_tracing.reset(token)
