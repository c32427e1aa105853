# SPDX-License-Identifier: Apache-2.0
"""Trial: one call of a module or function that can be run by itself, any number of times.

The call is one step of a model's forward pass. A run changes neither the model nor the batch:
gradients are added to copies of the inputs and to temporary parameters (see stand_in.py).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

Run = Callable[[list[Tensor]], list[Tensor]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """Call of a module or function in a model's forward pass, with inputs, to be run by itself.

    Attributes:
        run: Function that gets the input tensors, and returns the tensors of the result.
        inputs: Input tensors. The backward pass computes a gradient for each input that requires a
            gradient.
        changes: Positions of the inputs that the call changes in place.
        gradients_to: Positions of the results at which the backward pass begins. None stands for
            all results that require a gradient.
        is_trained: True if a parameter receives a gradient.
    """

    run: Run
    inputs: Sequence[Tensor]
    changes: frozenset[int] = frozenset()
    gradients_to: frozenset[int] | None = None
    is_trained: bool = False

    def prepared(self) -> Prepared:
        """Return an object that runs this call once and leaves `inputs` unchanged."""
        return Prepared(self)


class Prepared:
    """One run of a module or function by itself, forward and backward.

    Call `forward`, then `seed`, then `backward` or `backward_to_inputs`. The method `seed` makes
    the gradients with which the backward pass begins.

    Attributes:
        leaves: Autograd leaves that receive the gradients of the inputs.
        inputs: Input tensors of the run.
        results: Tensors of the result, after `forward`.
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
        """Run the forward pass of the call, and set `results`."""
        self.results = self._trial.run(self.inputs)

    def seed(self) -> bool:
        """Make the gradients with which the backward pass begins: ones for each result.

        Returns:
            False if no result requires a gradient, so that there is no backward pass.
        """
        chosen = self._trial.gradients_to
        self._ends = [
            result
            for i, result in enumerate(self.results)
            if result.grad_fn is not None and (chosen is None or i in chosen)
        ]
        self._seeds = [torch.ones_like(end) for end in self._ends]
        return bool(self._ends)

    def backward(self) -> None:
        """Run the whole backward pass; it adds gradients to inputs and parameters."""
        torch.autograd.backward(self._ends, self._seeds)

    def backward_to_inputs(self, *, keep: bool = False) -> None:
        """Run the part of the backward pass that computes the gradients of the inputs only.

        The gradients are discarded.

        Args:
            keep: True keeps the autograd graph, so that another backward pass can follow.
        """
        torch.autograd.grad(
            self._ends, self.leaves, self._seeds, retain_graph=keep, allow_unused=True
        )


def storages(tensors: Iterable[Tensor]) -> set[int]:
    """Return the storages of these tensors, each as the id from `storage_of`."""
    return {storage_of(tensor) for tensor in tensors}


def storage_of(tensor: Tensor) -> int:
    """Return an id of a tensor's storage, which is unique as long as the storage exists."""
    return int(tensor.untyped_storage()._cdata)
