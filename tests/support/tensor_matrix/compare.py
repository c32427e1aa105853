# SPDX-License-Identifier: Apache-2.0
"""Difference between split layers and one process."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from matrix.compare import difference
from matrix.one_process import Run

from .tensor_case import TensorCase


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorDifference:
    """Difference of a case from one process.

    Attributes:
        gradient: Relative error of the most different gradient in the first step.
        parameter: The name of its parameter.
        loss: Largest difference of a step's loss; relative for losses below 1.
        share: Share of the model's elements in split parameters.
        whole: Modules that stay whole, as "name: reason".
        sliced: Number of split regions after which sequences are split.
    """

    gradient: float
    parameter: str
    loss: float
    share: float
    whole: tuple[str, ...]
    sliced: int


def compared(
    world: Any, case: TensorCase, expected: Run, *, deadline: float = 120
) -> TensorDifference:
    """Run a case on the ranks of a world and return its difference from the expected run.

    Raises:
        AssertionError: Ranks of one replica disagree on the loss.
    """
    from .on_ranks import trained

    steps = len(expected.losses)
    found = world.run(trained, case, steps, size=case.world, deadline=deadline)
    gradients = {name: each for rank in found for name, each in rank.run.gradients.items()}
    assert len({each.run.losses for each in found}) <= case.replicas, "ranks know other losses"
    losses = zip(*(each.run.losses for each in found), strict=True)
    run = Run(
        gradients={name: gradients.get(name) for name in expected.gradients},
        losses=tuple(sum(each) / len(each) for each in losses),
    )
    apart = difference(expected, run)
    return TensorDifference(
        gradient=apart.gradient,
        parameter=apart.parameter,
        loss=apart.loss,
        share=found[0].share,
        whole=found[0].whole,
        sliced=found[0].sliced,
    )
