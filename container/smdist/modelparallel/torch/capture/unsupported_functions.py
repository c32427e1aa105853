# SPDX-License-Identifier: Apache-2.0
"""Functions of PyTorch that cannot be recorded, although they run on fake tensors.

`title_of` returns the short name of any function, for graphs and errors.
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
    """Return a function's short name, such as "add", for graphs and errors.

    For access to a tensor's property, such as `x.T`, the result is the property's name. For `apply`
    of an autograd function, the result is the name of the function's class.
    """
    owner = getattr(function, "__self__", None)
    name = str(getattr(function, "__name__", type(function).__name__))
    if name in ("__get__", "__set__"):
        return str(getattr(owner, "__name__", name))
    if name == "apply" and isinstance(owner, type):
        return owner.__name__
    return name.strip("_") if name.startswith("__") else name


# errors that fake tensors raise if an operation needs the values of a tensor
NEEDS_NUMBERS = (
    DataDependentOutputException,
    DynamicOutputShapeException,
    UnsupportedFakeTensorException,
    UnsupportedOperatorException,
)
# functions that change their second and third argument, although their schema does not declare it
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
    """Return the reason why a function cannot be recorded, as a clause; "" if there is none.

    A function cannot be recorded if it registers a hook on a tensor, changes a tensor's properties,
    or computes gradients. A hook belongs to one tensor object, but each stage has a tensor object
    of its own. Gradients in a forward pass would have to be sent between stages.
    """
    title = title_of(function)
    if title in _LOST:
        return f"it calls {title}() on a tensor"
    if getattr(function, "__name__", "") == "__set__":
        return f"it sets {title} of a tensor"
    return "it computes gradients itself" if function in _DIFFERENTIATES else ""
