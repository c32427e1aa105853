# SPDX-License-Identifier: Apache-2.0
"""What a recorder knows of a call before it has run, and of the modules around it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from smdist.modelparallel.torch.capture.state import Snapshot
from smdist.modelparallel.torch.program import Argument
from smdist.modelparallel.torch.tree import Form


@dataclass(slots=True)
class Inside:
    """A container that is running.

    Attributes:
        name: Its first name; "" is the model.
        module: Itself.
        before: How it was.
        passes: Whether its class's own `__call__` has yet to call that of `nn.Module`.
    """

    name: str
    module: nn.Module
    before: Snapshot
    passes: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """A call: see `Call` for the attributes; `leaves` are those of its arguments."""

    name: str
    module: str
    function: Callable[..., Any] | None
    form: Form
    leaves: list[Any]
    sources: tuple[Argument, ...]
    checkpoint: dict[str, Any] | None = None


def result_names(base: str, leaves: list[Any]) -> list[str]:
    """Names for what a call returns: its own, numbered where it returns several tensors."""
    tensors = sum(isinstance(leaf, Tensor) for leaf in leaves)
    return [base if tensors == 1 else f"{base}#{at}" for at in range(len(leaves))]


def first_line(error: BaseException) -> str:
    """Of its message, for errors about it."""
    return (str(error).strip().splitlines() or [""])[0][:200].rstrip(".")
