# SPDX-License-Identifier: Apache-2.0
"""Functions of PyTorch that cannot stand in a program, though they run without numbers."""

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

from smdist.modelparallel.torch.capture.titles import title_of

# What fakes raise where an operation needs numbers.
NEEDS_NUMBERS = (
    DataDependentOutputException,
    DynamicOutputShapeException,
    UnsupportedFakeTensorException,
    UnsupportedOperatorException,
)
# They change their second and third argument, and do not say so.
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
    """Why a function cannot be recorded; empty if it can.

    Hooks belong to one tensor object, which is another on each stage. Gradients inside a forward
    pass would have to cross stages.
    """
    title = title_of(function)
    if title in _LOST:
        return f"it calls {title}() on a tensor"
    if getattr(function, "__name__", "") == "__set__":
        return f"it sets {title} of a tensor"
    return "it computes gradients itself" if function in _DIFFERENTIATES else ""
