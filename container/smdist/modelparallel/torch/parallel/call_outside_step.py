# SPDX-License-Identifier: Apache-2.0
"""Calls of the model outside of a step function: forward passes, or training with one stage."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from sagemaker_dist.errors import OptionError
from smdist.modelparallel.torch import session
from smdist.modelparallel.torch.capture import arguments_of
from smdist.modelparallel.torch.executor import Arguments
from smdist.modelparallel.torch.parallel import run_step
from smdist.modelparallel.torch.parallel.call_agreement import find_capture
from smdist.modelparallel.torch.parallel.first_step import prepare_for
from smdist.modelparallel.torch.parallel.model_state import ModelState
from smdist.modelparallel.torch.parallel.precision import loss_scale
from smdist.modelparallel.torch.parallel.step_function import (
    MicrobatchCall,
    StepFunction,
    example_of,
    plain_backward,
    watched,
)
from smdist.modelparallel.torch.program.batch import Batch


def forward(state: ModelState, arguments: Arguments) -> Any:
    """Run one forward pass of the whole batch. All ranks of a pipeline must pass the same batch.

    Args:
        state: State of the parallel model.
        arguments: Positional arguments and keyword arguments of the model's call.

    Returns:
        Output of the model, the same on all ranks of the pipeline.

    Raises:
        OptionError: Gradients are enabled, and the model has several stages, which only a step can
            train.
    """
    if not torch.is_grad_enabled():
        return run_step.run(state, _whole(state, arguments), parts=1)[0]
    if not _has_one_stage(state):
        raise OptionError(
            f"{type(state.model).__name__} is called outside of a step, with gradients enabled",
            "its backward pass runs on several ranks, which only a step can do",
            "Call it in a function with @smp.step, or under torch.no_grad()",
            about="model",
            kind="outside_step",
        )
    state.check_caught_up()
    if state.split is None:
        prepare_for(state, lambda: Batch.of(example_of(arguments, state.model)))
    return _one_stage(state, arguments)


def backward(state: ModelState, tensors: Any, gradients: Any) -> None:
    """Run the backward pass of a model with one stage, and reduce gradients over replicas.

    Args:
        state: State of the parallel model.
        tensors: Tensor or tensors from which the backward pass starts, such as the loss.
        gradients: Gradient of each tensor; None stands for 1, for tensors with one element.

    Raises:
        OptionError: The model has several stages, a tensor requires no gradient, or the gradient of
            a tensor with several elements is missing.
    """
    split = state.split
    if split is None or not _has_one_stage(state):
        raise OptionError(
            "model.backward() is called outside of a step",
            "the backward pass runs on several ranks, which only a step can do",
            "Call it in a function with @smp.step",
            about=("model", "backward"),
            kind="outside_step",
        )
    scale = loss_scale() if state.settings.fp16 else 1.0
    microbatch_call = MicrobatchCall(answer=lambda _: None, scale=scale)
    microbatch_call.backward(tensors, gradients)
    state.is_returning = True
    try:
        with run_step.complete(state, split) as is_last:
            # A script may catch an error of this pass, so no all-reduce may have started before.
            split.replicas.hooks.before_backward(0, is_last, overlaps=False)
            roots, given = zip(*microbatch_call.roots, strict=True)
            torch.autograd.backward(roots, given)
            split.replicas.hooks.after_backward(0, is_last)
    finally:
        state.is_returning = False


def _one_stage(state: ModelState, arguments: Arguments) -> Any:
    """Run a model with one stage, with gradients enabled, and return its output.

    A call of `backward()` on a tensor computed from the output raises an error;
    `model.backward(loss)` must be called in its place.
    """
    split = state.split
    assert split is not None
    seen = find_capture(split, arguments)
    split.captured, split.placement, split.configured_for = seen.captured, seen.placement, None
    (stage,) = split.stages.values()
    stage.serve(seen.captured, seen.placement)
    if state.settings.broadcasts_buffers:
        with split.guarded("the broadcast of buffers"):
            split.replicas.broadcast_buffers()
    draws = state.draws(0, 1, state.next_repeat())
    output = stage.output(stage({}, arguments, draws.around))
    split.skeleton_sync.ignore_changes()

    def refuse_plain(_: Tensor) -> None:
        if not state.is_returning:
            raise plain_backward()

    return watched(output, refuse_plain)


def _has_one_stage(state: ModelState) -> bool:
    """Return True if the model has only one stage, or will have only one after its first step."""
    if state.split is not None:
        return len(state.split.plan.stages) == 1
    plan, degree = state.settings.plan, state.settings.options.pipeline_parallel_degree
    if plan is not None:
        return len(plan.stages) == 1
    return degree == 1 or (degree == "auto" and session.current().size == 1)


def _whole(state: ModelState, arguments: Arguments) -> StepFunction:
    """Return a step function that only calls the model with these arguments."""
    example = example_of(arguments, state.model)

    def function(given: Arguments) -> Any:
        assert state.microbatch_call is not None
        return state.microbatch_call.call(given)

    def cut(number: int) -> list[Arguments]:
        if number == 1:
            return [((arguments,), {})]
        batch = Batch.of(example)
        parts = (batch.microbatch(number, at) for at in range(number))
        return [((arguments_of(part),), {}) for part in parts]

    return StepFunction(
        name="the model's call", function=function, cut=cut, inputs=arguments,
        size=lambda: Batch.of(example).size,
    )  # fmt: skip
