# SPDX-License-Identifier: Apache-2.0
"""Steps for which the user writes no function: `train_step` and `evaluate` of a `Parallel`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from math import gcd
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from sagemaker_dist.errors import OptionError
from smdist.modelparallel.torch.batch import Batch
from smdist.modelparallel.torch.capture import arguments_of
from smdist.modelparallel.torch.executor import Arguments
from smdist.modelparallel.torch.parallel import stepping
from smdist.modelparallel.torch.parallel.work import Work
from smdist.modelparallel.torch.step.output import StepOutput, gathered
from smdist.modelparallel.torch.tree import map_leaves

if TYPE_CHECKING:
    from smdist.modelparallel.torch.parallel.parallel import Parallel

Loss = Callable[..., Any] | None


def train_step(model: Parallel, batch: Any, loss: Loss, targets: Any) -> StepOutput:
    """Forward and backward; the losses of all microbatches."""

    def function(arguments: Arguments, target: Any) -> Any:
        output = model(*arguments[0], **arguments[1])
        found = _loss(output, target, loss)
        model.backward(found)
        return found

    with torch.enable_grad():
        results = stepping.run(model._state, _work("train_step", function, batch, targets))
    return StepOutput(results)


def evaluate(model: Parallel, batch: Any, loss: Loss, targets: Any) -> Any:
    """Forward only, in evaluation mode; in as many microbatches as the batch allows."""

    def function(arguments: Arguments, target: Any) -> Any:
        output = model(*arguments[0], **arguments[1])
        return output if loss is None else _loss(output, target, loss)

    work = _work("evaluate", function, batch, targets)
    with _evaluation(model), torch.no_grad():
        planned = model.plan.num_microbatches if model.is_cut else 1
        results = stepping.run(model._state, work, parts=_parts(work, planned))
    return _joined(results) if loss is None else StepOutput(results).reduce_mean()


@contextmanager
def _evaluation(model: Parallel) -> Iterator[None]:
    """After it, each module is in the mode that it was in."""
    was_training = model.training
    modes = [(module, module.training) for module in model.module.modules()]
    model.eval()
    try:
        yield
    finally:
        model.train(was_training)  # those, too, that a cut has made
        for module, mode in modes:
            module.training = mode


def _joined(results: list[Any]) -> Any:
    """Outputs of microbatches as those of the whole batch; numbers are means."""
    return map_leaves(
        lambda leaf: _whole(leaf) if isinstance(leaf, StepOutput) else leaf, gathered(results)
    )


def _whole(output: StepOutput) -> Tensor:
    return output.reduce_mean() if output[0].dim() == 0 else output.concat()


def _loss(output: Any, target: Any, loss: Loss) -> Any:
    if loss is not None:
        return loss(output) if target is None else loss(output, target)
    found = output.get("loss") if isinstance(output, dict) else getattr(output, "loss", output)
    if not isinstance(found, Tensor) or found.numel() != 1:
        raise OptionError(
            "train_step got no loss",
            f"the model returns {type(output).__name__} without one",
            "Pass loss=: a function of what the model returns",
        )
    return found


def _parts(work: Work, planned: int) -> int:
    """As many microbatches as planned, or fewer that divide the batch."""
    try:
        return gcd(work.size(), planned)
    except OptionError:
        return planned  # the step says it to all ranks


def _work(name: str, function: Callable[..., Any], batch: Any, targets: Any) -> Work:
    def cut(number: int) -> list[Arguments]:
        whole, aims = Batch.of(batch), None if targets is None else Batch.of(targets)
        return [
            ((arguments_of(whole.microbatch(number, at)), aims and aims.microbatch(number, at)), {})
            for at in range(number)
        ]

    return Work(
        name=name, function=function, cut=cut, inputs=(batch, targets),
        size=lambda: Batch.of(batch).size,
    )  # fmt: skip
