# SPDX-License-Identifier: Apache-2.0
"""Mix-in classes that make an optimizer reduce gradients over all ranks.

Reduced          for an optimizer that updates variables after every backward pass: reduces the
                 gradients of every pass
ReducedOnUpdate  for an optimizer that accumulates gradients over several passes: reduces the
                 accumulated sums before each update
ReducedScale     for a LossScaleOptimizer whose inner optimizer has the mix-in ReducedOnUpdate: all
                 ranks skip a pass if any rank has gradients that are not finite
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from sagemaker_dist.errors import OptionError
from smdist.dataparallel.tensorflow.fused_allreduce import ReduceOptions, all_reduce
from smdist.dataparallel.tensorflow.gradients import describe_gradients, reduce_gradients
from smdist.dataparallel.tensorflow.local_sources import LocalSources
from smdist.dataparallel.tensorflow.op_library import tf, without_autograph
from smdist.dataparallel.tensorflow.reduce_op import ReduceOp


@dataclass(frozen=True, slots=True, kw_only=True)
class OptimizerReduction:
    """Options with which a distributed optimizer reduces gradients.

    Attributes:
        reduction: Options of the all-reduce.
        sparse_as_dense: True to convert IndexedSlices to dense tensors before the reduction.
        factor: Factor that multiplies the reduced gradients. If the user wants the sum over several
            backward passes, the factor is the number of passes, because Keras computes the average
            over the passes.
        local: Variables whose gradients are not reduced.
    """

    reduction: ReduceOptions
    sparse_as_dense: bool
    factor: float = 1.0
    local: LocalSources = field(default_factory=LocalSources)

    def reduce(
        self, gradients: Sequence[Any], variables: Sequence[Any], also_equal: str = ""
    ) -> list[Any]:
        """Reduce the gradients over all ranks; return the results in the same order.

        `variables` has the variable of each gradient. `also_equal` is a text that must be the same
        on all ranks; otherwise the reduction fails.
        """

        def over_ranks(gradients: list[Any], variables: list[Any]) -> list[Any]:
            return reduce_gradients(
                gradients, variables, self.reduction, self.sparse_as_dense, also_equal
            )

        reduced = self.local.reduce(gradients, variables, over_ranks)
        return reduced if self.factor == 1 else [_times(each, self.factor) for each in reduced]


class _DistributedBase:
    # None until the clone is complete
    smdist_reduction: OptimizerReduction | None = None

    def __setattr__(self, name: str, value: Any) -> None:
        # Keras sets this attribute when it puts an optimizer into a LossScaleOptimizer, as for
        # mixed_float16
        if name == "loss_scale_factor" and value is None and self.smdist_reduction is not None:
            raise OptionError(
                "a DistributedOptimizer was put into a LossScaleOptimizer",
                "on each rank the LossScaleOptimizer would skip a step if the gradients of this"
                " rank are not finite, and the other ranks would wait for this rank",
                "Use DistributedOptimizer(keras.optimizers.LossScaleOptimizer(optimizer)). With"
                " mixed_float16 Model.compile() then adds no LossScaleOptimizer",
                about="optimizer",
                kind="wrapped",
            )
        super().__setattr__(name, value)


class Reduced(_DistributedBase):
    """Optimizer mix-in that reduces the gradients passed to apply() over all ranks."""

    @without_autograph
    def apply(self, grads: Any, trainable_variables: Any = None) -> Any:
        """Reduce the gradients over all ranks, and apply the result to the variables.

        The arguments and the result are those of a Keras optimizer's apply().
        """
        grads = list(grads)
        variables = self._smdist_variables(grads, trainable_variables)
        if grads and self.smdist_reduction is not None:
            grads = self.smdist_reduction.reduce(grads, variables)
        return super().apply(grads, trainable_variables)  # type: ignore[misc]  # the optimizer's

    def _smdist_variables(self, grads: list[Any], given: Any) -> list[Any]:
        known = self._trainable_variables if given is None else list(given)  # type: ignore[attr-defined]  # idem
        # the optimizer's apply() raises an error for a wrong number of gradients
        return known if len(known) == len(grads) else [None] * len(grads)


class ReducedOnUpdate(Reduced):
    """Optimizer mix-in that reduces accumulated gradients over all ranks before an update."""

    # describes which variables have gradients in this pass; Keras leaves out the others later
    _smdist_given = ""

    @without_autograph
    def apply(self, grads: Any, trainable_variables: Any = None) -> Any:
        """Accumulate the gradients of one backward pass on this rank.

        Keras updates the variables once in several backward passes. Before each update, the
        accumulated gradients are reduced over all ranks. The arguments and the result are those of
        a Keras optimizer's apply().
        """
        grads = list(grads)
        present = [None if each is None else True for each in grads]
        self._smdist_given = describe_gradients(
            present, self._smdist_variables(grads, trainable_variables)
        )
        return super(Reduced, self).apply(grads, trainable_variables)  # type: ignore[misc]  # idem

    @without_autograph
    def _clip_gradients(self, grads: Any) -> Any:
        """Reduce the gradients over all ranks, clip them, and return them.

        Keras calls this at the beginning of each update and at no other time.
        """
        if self.smdist_reduction is not None:
            grads = self.smdist_reduction.reduce(grads, [None] * len(grads), self._smdist_given)
        return super()._clip_gradients(grads)  # type: ignore[misc]  # idem


class ReducedScale(_DistributedBase):
    """LossScaleOptimizer mix-in: all ranks skip a step if one has NaN or infinite gradients."""

    @without_autograph
    def check_finite(self, grads: Any) -> Any:
        """Return a bool tensor: True if the gradients of all ranks are finite."""
        mine = super().check_finite(grads)  # type: ignore[misc]  # idem
        flag = tf.reshape(tf.cast(mine, tf.int32), [1])
        [everyone] = all_reduce([flag], ReduceOptions(op=ReduceOp.MIN))
        return tf.cast(everyone[0], tf.bool)


def averages_over_world(optimizer: Any) -> bool:
    """Return True if DistributedOptimizer() has created this optimizer, for no process set."""
    for each in (optimizer, getattr(optimizer, "inner_optimizer", None)):
        options = getattr(each, "smdist_reduction", None)
        if options is not None:
            members = options.reduction.members
            return is_distributed(optimizer) and (members is None or members.group == 0)
    return False


def is_distributed(optimizer: Any) -> bool:
    """Return True if DistributedOptimizer() has created this optimizer."""
    return isinstance(optimizer, (Reduced, ReducedScale))


def _times(gradient: Any, factor: float) -> Any:
    if gradient is None:
        return None
    if isinstance(gradient, tf.IndexedSlices):
        return tf.IndexedSlices(gradient.values * factor, gradient.indices, gradient.dense_shape)
    return gradient * tf.cast(factor, gradient.dtype)
