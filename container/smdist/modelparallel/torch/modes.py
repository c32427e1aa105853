# SPDX-License-Identifier: Apache-2.0
"""The modes of PyTorch that change what an operation means: gradients, inference, autocast.

A forward function may enter `torch.no_grad()` or `torch.autocast` around some of its operations.
Each node of a program remembers where that differs from the modes around the whole forward pass.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

import torch

_DEVICES = ("cpu", "cuda")


@dataclass(frozen=True, slots=True, kw_only=True)
class Autocast:
    """Autocast on one type of device."""

    device: str
    is_on: bool
    dtype: torch.dtype
    caches: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Modes:
    """All modes at one moment."""

    grad: bool
    inference: bool
    autocasts: tuple[Autocast, ...]


def current_modes() -> Modes:
    """The modes that hold right now."""
    return Modes(
        grad=torch.is_grad_enabled(),
        inference=torch.is_inference_mode_enabled(),
        autocasts=tuple(_autocast(device) for device in _DEVICES),
    )


@contextmanager
def entered(modes: Modes, base: Modes) -> Iterator[None]:
    """Within it, whatever `modes` changed against `base` is so; the rest stays as it is."""
    with ExitStack() as stack:
        if modes.inference != base.inference:
            stack.enter_context(torch.inference_mode(modes.inference))
        if modes.grad != base.grad:
            stack.enter_context(torch.set_grad_enabled(modes.grad))
        for here, there in zip(modes.autocasts, base.autocasts, strict=True):
            if here != there:
                stack.enter_context(_context(here))
        yield


def _autocast(device: str) -> Autocast:
    return Autocast(
        device=device,
        is_on=torch.is_autocast_enabled(device),
        dtype=torch.get_autocast_dtype(device),
        caches=torch.is_autocast_cache_enabled(),
    )


def _context(autocast: Autocast) -> torch.autocast:
    return torch.autocast(
        autocast.device,
        dtype=autocast.dtype,
        enabled=autocast.is_on,
        cache_enabled=autocast.caches,
    )
