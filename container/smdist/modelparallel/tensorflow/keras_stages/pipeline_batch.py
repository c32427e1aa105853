# SPDX-License-Identifier: Apache-2.0
"""Batch of one step: inputs, targets and sample weights, and its division into microbatches.

Only the first rank of a pipeline uses the data that it read. It sends the targets to the rank of
the last stage, and inputs to the ranks of further stages that read them. So the ranks need not
shuffle alike; their batches only need the same shapes.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

import keras
import tensorflow as tf

from sagemaker_dist.errors import OptionError


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineBatch:
    """Batch of one pipeline in one step.

    Attributes:
        inputs: Tensors of the model's inputs, flattened.
        targets: Pair of targets and sample weights, each a structure of tensors or None.
        example: Inputs in the structure that the model takes.
    """

    inputs: tuple[Any, ...]
    targets: Any
    example: Any

    @classmethod
    def of(cls, x: Any, y: Any = None, sample_weight: Any = None) -> PipelineBatch:
        """Return the batch with all its leaves converted to tensors."""
        example = keras.tree.map_structure(_tensor, x)
        targets = keras.tree.map_structure(_tensor, (y, sample_weight))
        return cls(inputs=tuple(keras.tree.flatten(example)), targets=targets, example=example)

    @property
    def size(self) -> int:
        """Number of samples."""
        return int(self.inputs[0].shape[0])

    @property
    def leaves(self) -> list[Any]:
        """All tensors of the batch: inputs, then targets and weights that are not None."""
        return [*self.inputs, *(each for each in keras.tree.flatten(self.targets) if _is(each))]

    def with_leaves(self, leaves: list[Any]) -> PipelineBatch:
        """Return the batch with other tensors in place of `self.leaves`."""
        rest = iter(leaves[len(self.inputs) :])
        targets = keras.tree.map_structure(lambda each: next(rest) if _is(each) else each,
                                           self.targets)  # fmt: skip
        inputs = tuple(leaves[: len(self.inputs)])
        return PipelineBatch(inputs=inputs, targets=targets, example=self.example)

    def needed(self, inputs: Collection[int], *, with_targets: bool) -> list[int]:
        """Return the indices of the leaves that a rank needs.

        Args:
            inputs: Indices of the inputs that its stages read.
            with_targets: True if the rank has the last stage.
        """
        first = len(self.inputs)
        rest = range(first, len(self.leaves)) if with_targets else ()
        return [*sorted(inputs), *rest]

    def split(self, parts: int) -> list[PipelineBatch]:
        """Return the microbatches, as equal parts of the batch along the first axis.

        Raises:
            OptionError: The batch cannot be divided into so many equal parts, or a tensor has
                another number of samples.
        """
        leaves = self.leaves
        for number, each in enumerate(leaves):
            if each.shape.rank == 0 or each.shape[0] != self.size:
                raise OptionError(
                    f"tensor {number} of the batch has shape {tuple(each.shape)}",
                    f"the first input has {self.size} samples, and each tensor needs as many",
                    "Pass tensors whose first axis is the samples",
                    about="batch",
                )
        if self.size % parts:
            raise OptionError(
                f"a batch has {self.size} samples",
                f"it cannot be divided into {parts} equal microbatches",
                "Use a batch size that microbatches divides, and drop the remainder of the data:"
                " dataset.batch(size, drop_remainder=True)",
                about="microbatches",
                kind="indivisible",
            )
        pieces = [tf.split(each, parts) for each in leaves]
        return [self.with_leaves([piece[number] for piece in pieces]) for number in range(parts)]

    @property
    def microbatch_example(self) -> Any:
        """Inputs in the structure that the model takes, with the tensors of this batch."""
        return keras.tree.pack_sequence_as(self.example, list(self.inputs))


def _tensor(value: Any) -> Any:
    return None if value is None else tf.convert_to_tensor(value)


def _is(value: Any) -> bool:
    return value is not None
