# SPDX-License-Identifier: Apache-2.0
"""Scope of a step function: what model(...) returns in it, and the loss that it hands over."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final

from sagemaker_dist.errors import OptionError


class _Placeholder:
    """Mark in the result of a step function in place of the gradients."""

    def __repr__(self) -> str:
        return "gradients"


GRADIENTS: Final = _Placeholder()


class ModelReached(BaseException):
    """Signal that the function called the model, with the arguments of the call.

    Attributes:
        model: The distributed model.
        inputs: Inputs of the call.
        training: Argument `training` of the call.
    """

    def __init__(self, model: Any, inputs: Any, *, training: bool) -> None:
        super().__init__()
        self.model, self.inputs, self.training = model, inputs, training


@dataclass(slots=True)
class StepScope:
    """State while a step function runs.

    Attributes:
        model: The distributed model; None while it is not known.
        outputs: What model(...) returns; None to raise ModelReached.
        losses: Losses that were passed to smp.gradients().
    """

    model: Any = None
    outputs: Any = None
    losses: list[Any] = field(default_factory=list)


_scopes: list[StepScope] = []  # at most one


@contextmanager
def step_scope(model: Any = None, outputs: Any = None) -> Iterator[StepScope]:
    """Run the `with` block as the body of a step function."""
    scope = StepScope(model, outputs)
    _scopes.append(scope)
    try:
        yield scope
    finally:
        _scopes.pop()


def active_scope(caller: str) -> StepScope:
    """Return the scope of the step function that runs.

    Raises:
        OptionError: None runs.
    """
    if not _scopes:
        raise OptionError(
            f"{caller} was called outside of a step",
            "no rank has the whole model, so it runs only in steps of all ranks",
            "Call it in a function with @smp.step, or use fit, evaluate and predict",
            about=caller,
            kind="outside",
        )
    return _scopes[-1]


def called(model: Any, inputs: Any, *, training: bool) -> Any:
    """Return what model(...) returns in a step function.

    Raises:
        ModelReached: The part of the function before the model is complete.
        OptionError: No step function runs.
    """
    scope = active_scope("model")
    if scope.outputs is None:
        raise ModelReached(model, inputs, training=training)
    return scope.outputs
