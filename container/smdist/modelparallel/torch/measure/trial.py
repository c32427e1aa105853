# SPDX-License-Identifier: Apache-2.0
"""One call of a forward pass that can be run by itself, any number of times.

A run never touches what belongs to the model or to the batch: gradients flow into copies of the
inputs, and into stand-ins of the parameters (see stand_in.py).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

Run = Callable[[list[Tensor]], list[Tensor]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """A call and its inputs.

    Attributes:
        run: Function from tensors to tensors.
        inputs: Input tensors; those that require a gradient receive one.
        changes: Positions of the inputs that the call changes in place.
        gradients_to: Positions of the results that receive a gradient; None for all that can.
        is_trained: True if a parameter receives a gradient.
    """

    run: Run
    inputs: Sequence[Tensor]
    changes: frozenset[int] = frozenset()
    gradients_to: frozenset[int] | None = None
    is_trained: bool = False

    def prepared(self) -> Prepared:
        """Return a new run, with inputs that nothing else holds."""
        return Prepared(self)


class Prepared:
    """One run of a trial: `forward`, `seed`, then one of the two backward passes.

    Inputs with a gradient are clones of leaves, since a unit may change its input in place.
    """

    def __init__(self, trial: Trial) -> None:
        self._trial = trial
        self.leaves: list[Tensor] = []
        self.inputs = [self._input(i, tensor) for i, tensor in enumerate(trial.inputs)]
        self.results: list[Tensor] = []
        self._ends: list[Tensor] = []
        self._seeds: list[Tensor] = []

    def _input(self, position: int, tensor: Tensor) -> Tensor:
        if not tensor.requires_grad:
            return tensor.clone() if position in self._trial.changes else tensor
        leaf = tensor.detach().clone().requires_grad_()
        self.leaves.append(leaf)
        return leaf.clone()

    def forward(self) -> None:
        """Run the forward pass."""
        self.results = self._trial.run(self.inputs)

    def seed(self) -> bool:
        """Make gradients for the results; return False if no result has a backward pass."""
        chosen = self._trial.gradients_to
        self._ends = [
            result
            for i, result in enumerate(self.results)
            if result.grad_fn is not None and (chosen is None or i in chosen)
        ]
        self._seeds = [torch.ones_like(end) for end in self._ends]
        return bool(self._ends)

    def backward(self) -> None:
        """Run the whole backward pass; add gradients to those that are there."""
        torch.autograd.backward(self._ends, self._seeds)

    def backward_to_inputs(self, *, keep: bool = False) -> None:
        """Run part I of the backward pass, to the inputs; `keep` allows another pass after it."""
        torch.autograd.grad(
            self._ends, self.leaves, self._seeds, retain_graph=keep, allow_unused=True
        )


def storages(tensors: Iterable[Tensor]) -> set[int]:
    """Return the numbers that identify the tensors' storages."""
    return {storage_of(tensor) for tensor in tensors}


def storage_of(tensor: Tensor) -> int:
    """Return a number for a tensor's memory, which is valid while a tensor with it lives."""
    return int(tensor.untyped_storage()._cdata)
