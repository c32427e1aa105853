# SPDX-License-Identifier: Apache-2.0
"""Run of all stages of a split model in one process, forward and backward.

A value that one stage passes to another is detached from the autograd graph, as in a message
between processes. So this module, and not autograd, passes its gradient back to the sending stage.

While a stage runs forward, the parameters and buffers of all other stages are NaN. If the stage
reads one of them by mistake, its results differ from those of the whole model.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from math import nan
from typing import Any

import torch
from torch import Tensor

from smdist.modelparallel.core.placement import Placement
from smdist.modelparallel.torch.materialization.stage_module import StageModule
from smdist.modelparallel.torch.randomness import RngStream

Roots = list[tuple[Tensor, Tensor | None]]


@dataclass(slots=True)
class _Ran:
    """State of a stage after its forward pass.

    Attributes:
        received: Detached values from earlier stages, by name.
        values: Values for later stages and, on the last stage, outputs of the model, by name.
        gradients: Gradient of each of `values`, by name, summed over the later stages.
    """

    received: dict[str, Tensor]
    values: dict[str, Any]
    gradients: dict[str, Tensor] = field(default_factory=dict)


def replay(
    stages: Sequence[StageModule],
    placement: Placement,
    arguments: Any,
    roots_of: Callable[[Any], Roots],
    draws: RngStream,
) -> Any:
    """Run all stages forward, then backward; gradients are added to the model's parameters.

    Args:
        stages: All stages, in order.
        placement: Placement with the values that stages send to each other.
        arguments: Positional and keyword arguments of the whole model.
        roots_of: Function that gets the model's output, and returns the pairs (tensor, gradient) at
            which the backward pass begins.
        draws: Seed, step and microbatch, from which random numbers are drawn.

    Returns:
        The output of the model.
    """
    ran: list[_Ran] = []
    for number, stage in enumerate(stages):
        received = {
            edge.value: _cut(ran[edge.source].values[edge.value])
            for edge in placement.edges
            if edge.target == number
        }
        with _alone(stage, stages):
            ran.append(_Ran(received, stage(received, arguments, draws.around)))
    output = stages[-1].output(ran[-1].values)
    roots = roots_of(output)
    for number in reversed(range(len(stages))):
        own = roots if number == len(stages) - 1 else []
        _backward(ran[number], own)
        _carry(ran, placement, number)
    return output


@contextmanager
def _alone(stage: StageModule, stages: Sequence[StageModule]) -> Iterator[None]:
    """Set the parameters and buffers of all other stages to NaN within the block.

    This takes almost no memory: a single NaN is expanded to the shape of each tensor.
    """
    own = {id(tensor) for tensor in _held(stage)}
    others = {id(tensor): tensor for each in stages for tensor in _held(each)}
    hidden = [t for key, t in others.items() if key not in own and t.is_floating_point()]
    numbers = [tensor.data for tensor in hidden]
    for tensor in hidden:
        tensor.data = tensor.data.new_full((), nan).expand(tensor.shape)
    try:
        yield
    finally:
        for tensor, data in zip(hidden, numbers, strict=True):
            tensor.data = data


def _held(stage: StageModule) -> Iterator[Tensor]:
    yield from stage.parameters()
    yield from stage.buffers()


def _cut(value: Tensor) -> Tensor:
    return value.detach().requires_grad_(value.requires_grad)


def _backward(ran: _Ran, roots: Roots) -> None:
    sent: Roots = [(ran.values[name], gradient) for name, gradient in ran.gradients.items()]
    backward([*roots, *sent])


def backward(roots: Roots) -> None:
    """Run the backward pass from (tensor, gradient) pairs; the gradient of a scalar may be None.

    Tensors that require no gradient are skipped.
    """
    wanted = [(value, gradient) for value, gradient in roots if value.requires_grad]
    if wanted:
        torch.autograd.backward(
            [value for value, _ in wanted], [gradient for _, gradient in wanted]
        )


def _carry(ran: list[_Ran], placement: Placement, number: int) -> None:
    """Pass the gradients of a stage's inputs back to the stages that sent these inputs.

    Args:
        ran: State of every stage, by number; its `gradients` are changed.
        placement: Placement with the values that stages send to each other.
        number: Number of the stage whose backward pass has run.
    """
    for edge in placement.edges:
        gradient = ran[number].received[edge.value].grad if edge.target == number else None
        if gradient is not None:
            summed = ran[edge.source].gradients
            before = summed.get(edge.value)
            summed[edge.value] = gradient if before is None else before + gradient
