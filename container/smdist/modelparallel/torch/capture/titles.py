# SPDX-License-Identifier: Apache-2.0
"""What functions are called in the names of glue: "add", "getitem", "dropout"."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def title_of(function: Callable[..., Any]) -> str:
    """A short name: of a property its own, of an autograd function its class's."""
    owner = getattr(function, "__self__", None)
    name = str(getattr(function, "__name__", type(function).__name__))
    if name in ("__get__", "__set__"):
        return str(getattr(owner, "__name__", name))
    if name == "apply" and isinstance(owner, type):
        return owner.__name__
    return name.strip("_") if name.startswith("__") else name
