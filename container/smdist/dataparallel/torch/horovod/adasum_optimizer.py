# SPDX-License-Identifier: Apache-2.0
"""Optimizer whose changes of the parameters are combined by Adasum over all ranks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NoReturn

import torch

from sagemaker_dist.errors import OptionError
from smdist.dataparallel.torch.horovod.allreduce_calls import grouped_allreduce
from smdist.dataparallel.torch.horovod.process_set import ProcessSet
from smdist.dataparallel.torch.horovod.reductions import Adasum


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangeReduction:
    """Options with which changes of parameters are combined.

    Attributes:
        compression: Compression of the changes for the way.
        process_set: The ranks that share the model.
    """

    compression: Any
    process_set: ProcessSet

    def combined(self, changes: list[torch.Tensor]) -> list[torch.Tensor]:
        """Return the adaptive sums over the ranks, each tensor by itself, in the same order."""
        return grouped_allreduce(
            changes, compression=self.compression, op=Adasum, process_set=self.process_set
        )


class AdasumMixin:
    """Methods that DistributedOptimizer(op=Adasum) puts before those of the optimizer's class.

    Each rank makes the optimizer's step with its own gradients; the changes that the step has made
    to the parameters are then combined.
    """

    param_groups: list[dict[str, Any]]
    _changes: ChangeReduction

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Make the optimizer's step on this rank, and combine the changes of all ranks.

        Args:
            closure: Function that computes the loss and the gradients; None if they are there.

        Returns:
            The loss that `closure` has returned; None without one.

        Raises:
            OptionError: The number of ranks is no power of two.
            HorovodMismatchError: Ranks have different parameters.
            HorovodInternalError: A rank was lost.
        """
        params = [each for group in self.param_groups for each in group["params"]]
        params = [each for each in params if each.requires_grad]
        before = [each.detach().clone() for each in params]
        inherited: Any = super()
        loss = inherited.step() if closure is None else inherited.step(closure)
        with torch.no_grad():
            changes = [each - old for each, old in zip(params, before, strict=True)]
            combined = self._changes.combined(changes)
            for each, old, change in zip(params, before, combined, strict=True):
                each.copy_(old + change)
        return loss

    def synchronize(self) -> None:
        """Do nothing: step() makes the changes that travel, so nothing travels before it."""

    def skip_synchronize(self) -> NoReturn:
        """Raise an error: the exchange is part of step().

        Raises:
            OptionError: Always.
        """
        raise OptionError(
            "skip_synchronize() was called for an optimizer with op=Adasum",
            "changes of parameters are combined in step(), after the optimizer's own step",
            "Call step() alone",
            about="skip_synchronize",
            kind="unsupported",
        )
