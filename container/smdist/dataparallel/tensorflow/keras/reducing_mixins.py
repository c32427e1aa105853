# SPDX-License-Identifier: Apache-2.0
"""Mix-ins that reduce gradients over all ranks, placed before the optimizer's own class.

Reduced          apply()          reduces the gradients of every pass
ReducedOnUpdate  an update        reduces once the gradients added up on this rank
ReducedScale     check_finite()   around ReducedOnUpdate: reduces one flag a pass
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sagemaker_dist.errors import OptionError
from smdist.dataparallel.tensorflow.fused_allreduce import ReduceOptions, all_reduce
from smdist.dataparallel.tensorflow.gradients import described, reduce_gradients
from smdist.dataparallel.tensorflow.op_library import as_written, tf
from smdist.dataparallel.tensorflow.reduce_op import ReduceOp


@dataclass(frozen=True, slots=True, kw_only=True)
class OptimizerReduction:
    """Options of a distributed optimizer's gradient reduction.

    Attributes:
        factor: Factor of the reduced gradients; undoes Keras's average over passes for a sum.
    """

    reduction: ReduceOptions
    sparse_as_dense: bool
    factor: float = 1.0

    def reduce(
        self, gradients: Sequence[Any], variables: Sequence[Any], beside: str = ""
    ) -> list[Any]:
        """Return the gradients reduced over all ranks, each in its place."""
        reduced = reduce_gradients(
            gradients, variables, self.reduction, self.sparse_as_dense, beside
        )
        return reduced if self.factor == 1 else [_times(each, self.factor) for each in reduced]


class _Made:
    smdist_course: OptimizerReduction | None = None  # set when the clone is complete

    def __setattr__(self, name: str, value: Any) -> None:
        # Keras wraps an optimizer in this way for mixed_float16. Refuse it: ranks would skip
        # different steps.
        if name == "loss_scale_factor" and value is None and self.smdist_course is not None:
            raise OptionError(
                "a LossScaleOptimizer around a DistributedOptimizer",
                "it skips steps by the gradients of its own rank, and ranks would wait for it",
                "Wrap the outermost: DistributedOptimizer(keras.optimizers.LossScaleOptimizer("
                "optimizer)); under mixed_float16 Model.compile() then adds none",
            )
        super().__setattr__(name, value)


class Reduced(_Made):
    """Optimizer mix-in that reduces the gradients passed to apply()."""

    @as_written
    def apply(self, grads: Any, trainable_variables: Any = None) -> Any:
        """Apply the gradients of all ranks."""
        grads = list(grads)
        variables = self._smdist_variables(grads, trainable_variables)
        if grads and self.smdist_course is not None:
            grads = self.smdist_course.reduce(grads, variables)
        return super().apply(grads, trainable_variables)  # type: ignore[misc]  # the optimizer's

    def _smdist_variables(self, grads: list[Any], given: Any) -> list[Any]:
        known = self._trainable_variables if given is None else list(given)  # type: ignore[attr-defined]  # idem
        # apply() raises for a wrong number
        return known if len(known) == len(grads) else [None] * len(grads)


class ReducedOnUpdate(Reduced):
    """Optimizer mix-in that reduces the accumulated gradients when they are applied."""

    _smdist_given = ""  # variables with gradients in this pass: Keras leaves Nones out

    @as_written
    def apply(self, grads: Any, trainable_variables: Any = None) -> Any:
        """Accumulate gradients, and apply those of all ranks in the last pass of an update."""
        grads = list(grads)
        present = [None if each is None else True for each in grads]
        self._smdist_given = described(present, self._smdist_variables(grads, trainable_variables))
        return super(Reduced, self).apply(grads, trainable_variables)  # type: ignore[misc]  # idem

    @as_written
    def _clip_gradients(self, grads: Any) -> Any:
        """Reduce, then clip the gradients; Keras calls this first in an update, and only then."""
        if self.smdist_course is not None:
            grads = self.smdist_course.reduce(grads, [None] * len(grads), self._smdist_given)
        return super()._clip_gradients(grads)  # type: ignore[misc]  # idem


class ReducedScale(_Made):
    """LossScaleOptimizer mix-in that skips a pass on all ranks if one rank must skip it."""

    @as_written
    def check_finite(self, grads: Any) -> Any:
        """Return whether the gradients of all ranks are finite."""
        mine = super().check_finite(grads)  # type: ignore[misc]  # idem
        flag = tf.reshape(tf.cast(mine, tf.int32), [1])
        [everyone] = all_reduce([flag], ReduceOptions(op=ReduceOp.MIN))
        return tf.cast(everyone[0], tf.bool)


def is_distributed(optimizer: Any) -> bool:
    """Return whether DistributedOptimizer() made this optimizer."""
    return isinstance(optimizer, (Reduced, ReducedScale))


def _times(gradient: Any, factor: float) -> Any:
    if gradient is None:
        return None
    if isinstance(gradient, tf.IndexedSlices):
        return tf.IndexedSlices(gradient.values * factor, gradient.indices, gradient.dense_shape)
    return gradient * tf.cast(factor, gradient.dtype)
