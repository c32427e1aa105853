# SPDX-License-Identifier: Apache-2.0
"""Values of which a rank has a slice of the sequence, in calls that are run one by one.

Where tensor parallelism splits sequences, a call returns `SequencePart`s, and the calls that read
them save slices. Captures see whole values, so slices are found when calls run: a call whose
result is a slice passes one to the calls that read it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from smdist.modelparallel.torch.program.program import Call, ProgramInterpreter
from smdist.modelparallel.torch.tensor_splits import (
    SequencePart,
    SequenceSplit,
    splitting_sequences,
)


class SlicedValues:
    """Splits of sequences by the names of values; a value without a split is whole."""

    def __init__(self) -> None:
        self._splits: dict[str, SequenceSplit] = {}

    def found(self) -> Mapping[str, SequenceSplit]:
        """Return the splits by the names of values."""
        return dict(self._splits)

    def splits(self, names: Iterable[str]) -> tuple[SequenceSplit | None, ...]:
        """Return the split of each value; None for a whole one."""
        return tuple(self._splits.get(name) for name in names)

    def held(self, name: str, whole: Tensor) -> Tensor:
        """Return the tensor that this rank has of a value: its slice, or the whole value.

        Args:
            name: Name of the value.
            whole: The whole value, an autograd leaf.
        """
        split = self._splits.get(name)
        if split is None:
            return whole
        with torch.no_grad():
            return split.own(whole).clone().requires_grad_(whole.requires_grad)

    def run(
        self, machine: ProgramInterpreter, call: Call, tensors: Sequence[Tensor]
    ) -> list[Tensor]:
        """Run one call, and note which of its results are slices.

        Args:
            machine: Interpreter of the program.
            call: The call.
            tensors: Tensors that the call reads, in order, as `held` returns them.

        Returns:
            The tensors that this rank has of the results, in order.
        """
        values = {
            name: self._value(name, tensor)
            for name, tensor in zip(call.reads, tensors, strict=True)
        }
        with splitting_sequences():
            machine.run([call], values)
        return [self._noted(name, values[name]) for name in call.writes]

    def repeat(self, names: Sequence[str], others: Sequence[str]) -> None:
        """Note that results of a call are slices where those of a call of the same kind are.

        Args:
            names: Results of the call that has run, in order.
            others: Results of the other call, in the same order.
        """
        for name, split in zip(others, self.splits(names), strict=True):
            self._note(name, split)

    def _value(self, name: str, tensor: Tensor) -> Any:
        split = self._splits.get(name)
        return tensor if split is None else SequencePart(tensor, split)

    def _noted(self, name: str, value: Any) -> Any:
        if not isinstance(value, SequencePart):
            self._note(name, None)
            return value
        self._note(name, value.positions)
        return value.part

    def _note(self, name: str, split: SequenceSplit | None) -> None:
        if split is None:
            self._splits.pop(name, None)
        else:
            self._splits[name] = split
