# SPDX-License-Identifier: Apache-2.0
"""Optimizers of tf.compat.v1.train that reduce gradients over all ranks.

They are for the graph of a session, and for a loss that is a function. compute_gradients(), which
minimize() calls, reduces the gradients; all other methods are those of the given optimizer. So a
script may clip the reduced gradients before it calls apply_gradients().
"""

from __future__ import annotations

import copy
from functools import cache
from typing import Any

from sagemaker_dist.errors import require
from smdist.dataparallel.tensorflow.keras.reducing_mixins import OptimizerReduction
from smdist.dataparallel.tensorflow.op_library import tf, without_autograph


class ReducedGraphGradients:
    """Mix-in of optimizers of tf.compat.v1.train whose compute_gradients() reduces over ranks."""

    # set by reducing_clone()
    smdist_reduction: OptimizerReduction
    smdist_scope: str

    @without_autograph
    def compute_gradients(self, *args: Any, **options: Any) -> list[tuple[Any, Any]]:
        """Return (gradient, variable) pairs whose gradients are reduced over all ranks.

        The arguments are those of the optimizer's own compute_gradients().
        """
        pairs = list(super().compute_gradients(*args, **options))  # type: ignore[misc]  # idem
        gradients, variables = [each for each, _ in pairs], [each for _, each in pairs]
        with tf.name_scope(self.smdist_scope):
            reduced = self.smdist_reduction.reduce(gradients, variables)
        return list(zip(reduced, variables, strict=True))


def is_graph_optimizer(optimizer: Any) -> bool:
    """Return whether the optimizer is one of tf.compat.v1.train."""
    return isinstance(optimizer, tf.compat.v1.train.Optimizer)


def reducing_clone(
    optimizer: Any, options: OptimizerReduction, backward_passes_per_step: int, name: str | None
) -> Any:
    """Return an optimizer of a subclass of the optimizer's class, which shares its slots.

    Args:
        optimizer: An optimizer of tf.compat.v1.train.
        options: Options of the reduction.
        backward_passes_per_step: Must be 1.
        name: Name of the scope of the reduction; None for one from the optimizer's name. The
            names of the optimizer's variables stay as they are.

    Raises:
        OptionError: The optimizer is distributed already, or gradients should be accumulated.
    """
    require(
        not isinstance(optimizer, ReducedGraphGradients),
        what="the optimizer is a DistributedOptimizer already",
        why="gradients would be reduced twice",
        hint="Call DistributedOptimizer() once",
        about="optimizer",
        kind="wrapped",
    )
    require(
        backward_passes_per_step == 1,
        what=f"backward_passes_per_step is {backward_passes_per_step!r} with"
        f" {type(optimizer).__name__} of tf.compat.v1.train",
        why="this optimizer applies the gradients of each pass; only optimizers of Keras 3"
        " accumulate them",
        hint="Pass a larger batch, or an optimizer such as keras.optimizers.SGD(0.01)",
        about="backward_passes_per_step",
        kind="unsupported",
    )
    made = copy.copy(optimizer)  # the slots' dict is shared, as if the object were wrapped
    base: Any = type(optimizer)
    made.__class__ = _class(base)
    made.smdist_reduction = options
    made.smdist_scope = name or f"Distributed{optimizer.get_name()}"
    return made


@cache
def _class(base: Any) -> Any:
    return type(f"Distributed{base.__name__}", (ReducedGraphGradients, base), {})
