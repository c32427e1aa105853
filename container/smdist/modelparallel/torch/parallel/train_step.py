# SPDX-License-Identifier: Apache-2.0
"""Implementation of the methods `train_step` and `evaluate` of `Parallel`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from math import gcd
from typing import Any

import torch
from torch import Tensor, nn

from sagemaker_dist.errors import OptionError
from smdist.modelparallel.torch.capture import arguments_of
from smdist.modelparallel.torch.executor import Arguments
from smdist.modelparallel.torch.parallel import run_step
from smdist.modelparallel.torch.parallel.model_state import ModelState
from smdist.modelparallel.torch.parallel.step_function import StepFunction, StepOutput, gathered
from smdist.modelparallel.torch.program.batch import Batch
from smdist.modelparallel.torch.program.pytree import map_leaves

Loss = Callable[..., Any] | None


def train_step(
    model: nn.Module, state: ModelState, batch: Any, loss: Loss, targets: Any
) -> StepOutput:
    """Run the forward and backward passes of one training step; see `Parallel.train_step`.

    Args:
        model: `Parallel` module whose method was called.
        state: State of this module.
        batch: Arguments of the model: a tensor, a tuple or a dict.
        loss: Function `loss(output)` or, with targets, `loss(output, targets)`. None uses
            `output.loss`.
        targets: Data that is split into microbatches like the batch, or None.

    Returns:
        Loss of each microbatch.
    """

    def function(arguments: Arguments, target: Any) -> Any:
        output = model(*arguments[0], **arguments[1])
        found = _loss(output, target, loss)
        assert state.microbatch_call is not None
        state.microbatch_call.backward(found, None)
        return found

    with torch.enable_grad():
        results = run_step.run(state, _step_function("train_step", function, batch, targets))
    return StepOutput(results)


def evaluate(model: nn.Module, state: ModelState, batch: Any, loss: Loss, targets: Any) -> Any:
    """Run one forward pass in evaluation mode; see `Parallel.evaluate`.

    Args:
        model: `Parallel` module whose method was called.
        state: State of this module.
        batch: Arguments of the model: a tensor, a tuple or a dict.
        loss: Function `loss(output)` or, with targets, `loss(output, targets)`; None for no loss.
        targets: Data that is split into microbatches like the batch, or None.

    Returns:
        Mean loss over microbatches; without `loss`, the model's output for the whole batch.
    """

    def function(arguments: Arguments, target: Any) -> Any:
        output = model(*arguments[0], **arguments[1])
        return output if loss is None else _loss(output, target, loss)

    step_function = _step_function("evaluate", function, batch, targets)
    with _evaluation(model, state.model), torch.no_grad():
        planned = state.split.plan.num_microbatches if state.split is not None else 1
        results = run_step.run(state, step_function, parts=_parts(step_function, planned))
    return _joined(results) if loss is None else StepOutput(results).reduce_mean()


@contextmanager
def _evaluation(model: nn.Module, module: nn.Module) -> Iterator[None]:
    """Set evaluation mode within the block; afterwards restore each module's own mode.

    Args:
        model: `Parallel` module.
        module: User's model in it.
    """
    was_training = model.training
    modes = [(each, each.training) for each in module.modules()]
    model.eval()
    try:
        yield
    finally:
        model.train(was_training)  # reaches modules that a cut has made, too
        for each, mode in modes:
            each.training = mode


def _joined(results: list[Any]) -> Any:
    """Join the outputs of all microbatches: concatenate tensors, and average scalars.

    Args:
        results: Nested outputs of the model, in the order of microbatches.
    """
    return map_leaves(
        lambda leaf: _whole(leaf) if isinstance(leaf, StepOutput) else leaf, gathered(results)
    )


def _whole(output: StepOutput) -> Tensor:
    """Concatenate the tensors of all microbatches, or average them if they are scalars."""
    return output.reduce_mean() if output[0].dim() == 0 else output.concat()


def _loss(output: Any, target: Any, loss: Loss) -> Any:
    """Return the loss of one microbatch: from the loss function, or from the model's output.

    Args:
        output: Output of the model, which contains the loss if there is no loss function.
        target: Target of the microbatch, for the loss function; None if there are no targets.
        loss: Loss function; None if the model computes its loss itself.

    Raises:
        OptionError: There is no loss function, and the output has no loss.
    """
    if loss is not None:
        return loss(output) if target is None else loss(output, target)
    found = output.get("loss") if isinstance(output, dict) else getattr(output, "loss", output)
    if not isinstance(found, Tensor) or found.numel() != 1:
        raise OptionError(
            "train_step has no loss",
            f"the model returns {type(output).__name__}, which contains no loss of one element",
            "Pass loss=, a function that computes the loss from the model's output",
            about="loss",
        )
    return found


def _parts(step_function: StepFunction, planned: int) -> int:
    """Return the number of microbatches for an evaluation.

    This is the greatest common divisor of the batch size and `planned`.

    Args:
        step_function: Step with its batch.
        planned: Number of microbatches in the plan.
    """
    try:
        return gcd(step_function.size(), planned)
    except OptionError:
        return planned  # the step will raise this error on all ranks


def _step_function(
    name: str, function: Callable[..., Any], batch: Any, targets: Any
) -> StepFunction:
    """Return a step whose batch and targets are split into microbatches together.

    Args:
        name: Name of the step, for messages.
        function: Function that runs one microbatch. It gets the model's arguments and the targets
            of this microbatch.
        batch: Arguments of the model: a tensor, a tuple or a dict.
        targets: Data that the loss function needs besides the model's output; None if there is
            none.
    """

    def cut(number: int) -> list[Arguments]:
        whole, aims = Batch.of(batch), None if targets is None else Batch.of(targets)
        return [
            ((arguments_of(whole.microbatch(number, at)), aims and aims.microbatch(number, at)), {})
            for at in range(number)
        ]

    return StepFunction(
        name=name, function=function, cut=cut, inputs=(batch, targets),
        size=lambda: Batch.of(batch).size,
    )  # fmt: skip
