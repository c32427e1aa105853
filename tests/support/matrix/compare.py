# SPDX-License-Identifier: Apache-2.0
"""Difference between a pipeline and one process."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from smdist.modelparallel.torch.verification.compare import worst

from .case import Case
from .one_process import Arrays, Run


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """Difference of two runs.

    Attributes:
        gradient: Relative error of the most different gradient in the first step.
        parameter: The name of its parameter.
        loss: Largest difference of a step's loss; relative for losses below 1.
    """

    gradient: float
    parameter: str
    loss: float


def difference(expected: Run, found: Run) -> Difference:
    """Return the difference of one run from another."""
    assert expected.gradients.keys() == found.gradients.keys(), "not the same parameters"
    furthest = worst(_tensors(expected.gradients), _tensors(found.gradients))
    losses = zip(expected.losses, found.losses, strict=True)
    return Difference(
        gradient=furthest.error,
        parameter=furthest.name,
        loss=max(abs(one - other) / min(1.0, abs(one)) for one, other in losses),
    )


def compared(world: Any, case: Case, expected: Run, *, deadline: float = 120) -> Difference:
    """Run a case on the ranks of a world and return its difference from the expected run.

    Raises:
        AssertionError: Ranks disagree on the loss, or on a gradient that several of them hold.
    """
    from .on_ranks import trained

    steps = len(expected.losses)
    runs = world.run(trained, case, steps, size=case.world, deadline=deadline)
    return difference(expected, merged(runs))


def merged(runs: list[Run]) -> Run:
    """Merge the results of all ranks into one run.

    Raises:
        AssertionError: Ranks disagree.
    """
    gradients: Arrays = {}
    for run in runs:
        assert run.losses == runs[0].losses, "ranks know different losses"
        for name, gradient in run.gradients.items():
            if name in gradients:
                assert _is_equal(gradients[name], gradient), f"ranks have different {name}"
            gradients[name] = gradient
    return Run(gradients=gradients, losses=runs[0].losses)


def _is_equal(one: Any, other: Any) -> bool:
    return one is other if one is None or other is None else bool((one == other).all())


def _tensors(arrays: Arrays) -> dict[str, torch.Tensor | None]:
    return {
        name: None if array is None else torch.from_numpy(array) for name, array in arrays.items()
    }
