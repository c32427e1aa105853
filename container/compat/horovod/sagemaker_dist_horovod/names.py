# SPDX-License-Identifier: Apache-2.0
"""Contents of the modules below `packages`: names of another module, or the reason for none."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any


def names_of(module: str) -> tuple[Callable[[str], Any], Callable[[], list[str]], list[str]]:
    """Return `__getattr__`, `__dir__` and `__all__` of a module with the names of `module`."""
    ours = import_module(module)

    def get(name: str) -> Any:
        return getattr(ours, name)

    def list_names() -> list[str]:
        return dir(ours)

    return get, list_names, list(ours.__all__)


def refused(name: str, why: str, hint: str) -> ImportError:
    """Return the error of a module of Horovod that sagemaker-dist does not have."""
    return ImportError(f"horovod.{name} is not available in sagemaker-dist: {why}. {hint}.")
