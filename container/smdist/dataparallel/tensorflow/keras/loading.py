# SPDX-License-Identifier: Apache-2.0
"""Saved models whose optimizer goes on with all ranks."""

from __future__ import annotations

from typing import Any

import keras

from smdist.dataparallel.tensorflow import omissions
from smdist.dataparallel.tensorflow.keras.optimizer import DistributedOptimizer


def load_model(
    filepath: Any, custom_optimizers: Any = None, custom_objects: Any = None, **options: Any
) -> Any:
    """Load a model and wrap its optimizer, which keeps its state.

    Args:
        custom_optimizers: Optimizer classes of your own.
        options: What DistributedOptimizer() takes.

    Returns:
        The model, compiled as it was, without XLA.
    """
    omissions.note(omissions.WEIGHTS)
    known = {kind.__name__: kind for kind in custom_optimizers or ()}
    model = keras.saving.load_model(filepath, custom_objects={**known, **(custom_objects or {})})
    if getattr(model, "optimizer", None) is not None:
        model.optimizer = DistributedOptimizer(model.optimizer, **options)
        model.jit_compile = False
    return model
