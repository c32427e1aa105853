# SPDX-License-Identifier: Apache-2.0
"""Functions of PyTorch that a program cannot hold, though they run without numbers.

`title_of` gives the short names of functions that glue is called by: "add", "getitem", "dropout".
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    UnsupportedFakeTensorException,
    UnsupportedOperatorException,
)
from torch.nn import functional


def title_of(function: Callable[..., Any]) -> str:
    """Return a short name: a property's own name, or the class name of an autograd function."""
    owner = getattr(function, "__self__", None)
    name = str(getattr(function, "__name__", type(function).__name__))
    if name in ("__get__", "__set__"):
        return str(getattr(owner, "__name__", name))
    if name == "apply" and isinstance(owner, type):
        return owner.__name__
    return name.strip("_") if name.startswith("__") else name


# errors that fakes raise where an operation needs numbers
NEEDS_NUMBERS = (
    DataDependentOutputException,
    DynamicOutputShapeException,
    UnsupportedFakeTensorException,
    UnsupportedOperatorException,
)
# functions that change their second and third argument, and whose schema does not say so
WRITES_SECRETLY = (
    functional.batch_norm,
    torch.batch_norm,
    functional.instance_norm,
    torch.instance_norm,
)
_LOST = (
    "register_hook",
    "register_post_accumulate_grad_hook",
    "retain_grad",
    "requires_grad_",
    "set_",
    "share_memory_",
)
_DIFFERENTIATES = (torch.autograd.grad, torch.autograd.backward, Tensor.backward)


def objection(function: Callable[..., Any]) -> str:
    """Return the reason why a function cannot be recorded; "" if it can.

    Hooks belong to one tensor object, and each stage has another one. Gradients inside a
    forward pass would have to cross stages.
    """
    title = title_of(function)
    if title in _LOST:
        return f"it calls {title}() on a tensor"
    if getattr(function, "__name__", "") == "__set__":
        return f"it sets {title} of a tensor"
    return "it computes gradients itself" if function in _DIFFERENTIATES else ""
