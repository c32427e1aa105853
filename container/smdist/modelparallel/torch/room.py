# SPDX-License-Identifier: Apache-2.0
"""Whether all ranks together have room for a model at all: said before anything is measured."""

from __future__ import annotations

from torch import nn

from sagemaker_dist.errors import OptionError
from smdist.modelparallel.core.plan.text import size
from smdist.modelparallel.core.planner import Problem
from smdist.modelparallel.core.planner.candidates import degree_choices


def require_room(model: nn.Module, problem: Problem) -> None:
    """Refuse a model whose weights, gradients and optimizer state are more than there is.

    Raises:
        OptionError: They are.
    """
    limit, state = problem.memory_limit_bytes, problem.state
    if limit is None:
        return
    whole = state.weight + state.gradient + state.optimizer
    held = sum(
        each.numel() * (whole if each.requires_grad else each.element_size())
        for each in model.parameters()
    )
    ranks = max(degree_choices(problem))
    if held > limit * ranks:
        least = -(-int(held) // limit)
        raise OptionError(
            f"device_memory is {size(limit)}",
            f"no plan fits in that: weights, gradients and optimizer state of"
            f" {type(model).__name__} are {size(held)}, and {ranks} ranks have"
            f" {size(limit * ranks)} together",
            f"Use {least} ranks in a pipeline or more, or a leaner optimizer state",
        )
