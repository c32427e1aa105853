# SPDX-License-Identifier: Apache-2.0
"""Functions that run once a model is split: `smp.register_post_partition_hook` of SMP v1."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from sagemaker_dist.errors import OptionError

_Hook = TypeVar("_Hook", bound=Callable[[], Any])
_hooks: list[Callable[[], Any]] = []


def register_post_partition_hook(hook: _Hook) -> _Hook:
    """Register a function that runs on every rank between the split and the first forward pass.

    Usable as a decorator. It runs for each model that is split after this call.

    Args:
        hook: Function without arguments.

    Returns:
        The function.

    Raises:
        OptionError: `hook` is no function.
    """
    if not callable(hook):
        raise OptionError(
            f"hook is {hook!r}",
            "it is called when the model is split",
            "Pass a function without arguments, or use this as a decorator",
            about="hook",
        )
    _hooks.append(hook)
    return hook


def run_hooks() -> None:
    """Call all registered functions in the order of their registration."""
    for hook in _hooks:
        hook()


def forget_hooks() -> None:
    """Remove all registered functions; the end of a session does so."""
    _hooks.clear()
