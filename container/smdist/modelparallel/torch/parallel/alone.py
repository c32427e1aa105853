# SPDX-License-Identifier: Apache-2.0
"""The model called outside of a step: one forward pass, on all ranks."""

from __future__ import annotations

from typing import Any

import torch

from sagemaker_dist.errors import OptionError
from smdist.modelparallel.torch.batch import Batch
from smdist.modelparallel.torch.capture import arguments_of
from smdist.modelparallel.torch.executor import Arguments
from smdist.modelparallel.torch.parallel import stepping
from smdist.modelparallel.torch.parallel.state import State
from smdist.modelparallel.torch.parallel.work import Work, example_of


def forward(state: State, arguments: Arguments) -> Any:
    """One forward pass of the whole batch; every rank calls this with the same.

    Raises:
        OptionError: Gradients are enabled.
    """
    if torch.is_grad_enabled():
        raise OptionError(
            f"{type(state.model).__name__} is called outside of a step, with gradients enabled",
            "the backward pass has to go through stages on other ranks",
            "Call it in a function with @smp.step, or under torch.no_grad()",
        )
    return stepping.run(state, whole(state, arguments), parts=1)[0]


def whole(state: State, arguments: Arguments) -> Work:
    """The model's call and nothing around it."""
    example = example_of(arguments, state.model)

    def function(given: Arguments) -> Any:
        assert state.scene is not None
        return state.scene.call(given)

    def cut(number: int) -> list[Arguments]:
        if number == 1:
            return [((arguments,), {})]
        batch = Batch.of(example)
        parts = (batch.microbatch(number, at) for at in range(number))
        return [((arguments_of(part),), {}) for part in parts]

    size = Batch.of(example).size if state.split is None else 1
    return Work(name="the model's call", function=function, cut=cut, inputs=arguments, size=size)
