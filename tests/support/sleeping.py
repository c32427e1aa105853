# SPDX-License-Identifier: Apache-2.0
"""Models whose parts take a known time without a processor: they sleep, forward and backward.

So the bubbles of four ranks appear on any machine, however few processors it has.
"""

from __future__ import annotations

import time
from typing import Any

import torch
import zoo
from torch import Tensor, nn

from smdist.modelparallel.core.cost import NodeCost

_WIDTH = 8


class Asleep(torch.autograd.Function):
    """Function that passes a tensor on and takes this many seconds in each direction."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, forward_seconds: float, backward_seconds: float) -> Tensor:
        ctx.seconds = backward_seconds
        time.sleep(forward_seconds)
        return x.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:  # type: ignore[override]
        time.sleep(ctx.seconds)
        return gradient, None, None


class Sleeper(nn.Module):
    """Product with a weight; the gradients of both factors take their own time."""

    def __init__(self, seconds: tuple[float, float, float]) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.eye(_WIDTH))
        self.seconds = seconds

    def forward(self, x: Tensor) -> Tensor:
        forward, inputs, weights = self.seconds
        weight = Asleep.apply(self.weight, 0.0, weights)
        return Asleep.apply(x @ weight, forward, inputs)


def sleepers(seconds: list[tuple[float, float, float]], *, rows: int) -> zoo.Specimen:
    """Return a chain of such modules; `seconds` are F, I and W of each for one microbatch."""
    model = nn.Sequential(*map(Sleeper, seconds))
    return zoo.Specimen(model=model, batch=(torch.ones(rows, _WIDTH),))


def costs(seconds: list[tuple[float, float, float]], *, splits: bool) -> list[NodeCost]:
    """Return the cost of each module as a stage.

    Args:
        splits: Whether the schedule separates I and W. The first stage has no input that needs a
            gradient, so all of its backward pass is W in that case.
    """
    found = [
        NodeCost(forward_seconds=f, input_gradient_seconds=i, weight_gradient_seconds=w)
        for f, i, w in seconds
    ]
    if splits:
        f, i, w = seconds[0]
        found[0] = NodeCost(forward_seconds=f, weight_gradient_seconds=i + w)
    return found
