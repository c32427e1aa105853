# SPDX-License-Identifier: Apache-2.0
"""Where an optimizer's course meets the other ranks: mix-ins before its own class.

Reduced          apply()          gradients of every pass are reduced
ReducedOnUpdate  an update        gradients are added up here and reduced once
ReducedScale     check_finite()   around ReducedOnUpdate: one flag a pass
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sagemaker_dist.errors import OptionError
from smdist.dataparallel.tensorflow.gradients import described, reduce_gradients
from smdist.dataparallel.tensorflow.library import as_written, tf
from smdist.dataparallel.tensorflow.reduce_op import ReduceOp
from smdist.dataparallel.tensorflow.reducing import Reduction, all_reduce


@dataclass(frozen=True, slots=True, kw_only=True)
class Course:
    """What a distributed optimizer does with gradients.

    Attributes:
        factor: What reduced gradients are multiplied by: Keras averages over passes.
    """

    reduction: Reduction
    sparse_as_dense: bool
    factor: float = 1.0

    def reduce(
        self, gradients: Sequence[Any], variables: Sequence[Any], beside: str = ""
    ) -> list[Any]:
        """Gradients over all ranks, each in its place."""
        reduced = reduce_gradients(
            gradients, variables, self.reduction, self.sparse_as_dense, beside
        )
        return reduced if self.factor == 1 else [_times(each, self.factor) for each in reduced]


class _Made:
    smdist_course: Course | None = None  # set when the twin is complete

    def __setattr__(self, name: str, value: Any) -> None:
        # Keras does this when it wraps an optimizer for mixed_float16; ranks would disagree.
        if name == "loss_scale_factor" and value is None and self.smdist_course is not None:
            raise OptionError(
                "a LossScaleOptimizer around a DistributedOptimizer",
                "it skips steps by the gradients of its own rank, and ranks would wait for it",
                "Wrap the outermost: DistributedOptimizer(keras.optimizers.LossScaleOptimizer("
                "optimizer)); under mixed_float16 Model.compile() then adds none",
            )
        super().__setattr__(name, value)


class Reduced(_Made):
    """Reduces what apply() is given."""

    @as_written
    def apply(self, grads: Any, trainable_variables: Any = None) -> Any:
        """Apply gradients of all ranks."""
        grads = list(grads)
        variables = self._smdist_variables(grads, trainable_variables)
        if grads and self.smdist_course is not None:
            grads = self.smdist_course.reduce(grads, variables)
        return super().apply(grads, trainable_variables)  # type: ignore[misc]  # the optimizer's

    def _smdist_variables(self, grads: list[Any], given: Any) -> list[Any]:
        known = self._trainable_variables if given is None else list(given)  # type: ignore[attr-defined]  # idem
        return known if len(known) == len(grads) else [None] * len(grads)  # the optimizer will say


class ReducedOnUpdate(Reduced):
    """Reduces what has been added up, when it is applied."""

    _smdist_given = ""  # which variables have gradients in this pass: Keras leaves Nones out

    @as_written
    def apply(self, grads: Any, trainable_variables: Any = None) -> Any:
        """Add gradients up, and apply those of all ranks when it is time."""
        grads = list(grads)
        present = [None if each is None else True for each in grads]
        self._smdist_given = described(present, self._smdist_variables(grads, trainable_variables))
        return super(Reduced, self).apply(grads, trainable_variables)  # type: ignore[misc]  # idem

    @as_written
    def _clip_gradients(self, grads: Any) -> Any:
        """Keras calls this first of all in an update, and in nothing else."""
        if self.smdist_course is not None:
            grads = self.smdist_course.reduce(grads, [None] * len(grads), self._smdist_given)
        return super()._clip_gradients(grads)  # type: ignore[misc]  # idem


class ReducedScale(_Made):
    """A LossScaleOptimizer that skips a pass if any rank has to."""

    @as_written
    def check_finite(self, grads: Any) -> Any:
        """Whether all ranks' gradients are finite."""
        mine = super().check_finite(grads)  # type: ignore[misc]  # idem
        flag = tf.reshape(tf.cast(mine, tf.int32), [1])
        [everyone] = all_reduce([flag], Reduction(op=ReduceOp.MIN))
        return tf.cast(everyone[0], tf.bool)


def _times(gradient: Any, factor: float) -> Any:
    if gradient is None:
        return None
    if isinstance(gradient, tf.IndexedSlices):
        return tf.IndexedSlices(gradient.values * factor, gradient.indices, gradient.dense_shape)
    return gradient * tf.cast(factor, gradient.dtype)
