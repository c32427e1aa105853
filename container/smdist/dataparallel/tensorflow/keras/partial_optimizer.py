# SPDX-License-Identifier: Apache-2.0
"""Optimizers that reduce the gradients of some variables over ranks, and leave the others alone."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from sagemaker_dist.errors import require
from smdist.dataparallel.tensorflow.keras.clone_optimizer import innermost
from smdist.dataparallel.tensorflow.keras.optimizer import DistributedOptimizer
from smdist.dataparallel.tensorflow.keras.reducing_mixins import ReducedOnUpdate
from smdist.dataparallel.tensorflow.local_sources import LocalSources


def PartialDistributedOptimizer(  # noqa: N802  Horovod's name
    optimizer: Any,
    *,
    local_layers: Any = None,
    scale_local_gradients: bool = True,
    **options: Any,
) -> Any:
    """Return a DistributedOptimizer that leaves the gradients of some layers to each rank.

    Its method `register_local_var(variable)` declares another variable as local.

    Args:
        optimizer: A Keras 3 optimizer.
        local_layers: A Keras layer, or several, whose variables are local; None for none yet. Build
            them before.
        scale_local_gradients: True to divide local gradients by the number of ranks.
        options: Other arguments of DistributedOptimizer, apart from backward_passes_per_step.

    Raises:
        OptionError: A value is out of range, or gradients are accumulated over several passes.
    """
    made = DistributedOptimizer(optimizer, **options)
    require(
        not isinstance(innermost(made), ReducedOnUpdate),
        what="PartialDistributedOptimizer received an optimizer that accumulates gradients",
        why="accumulated gradients do not tell which variables they belong to",
        hint="Leave backward_passes_per_step and gradient_accumulation_steps out",
        about="backward_passes_per_step",
        kind="unsupported",
    )
    local = LocalSources(scale_local_gradients)
    local.add_layers(local_layers)
    made.smdist_reduction = replace(made.smdist_reduction, local=local)
    made.register_local_var = local.add
    return made
