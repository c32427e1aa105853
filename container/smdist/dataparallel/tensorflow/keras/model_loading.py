# SPDX-License-Identifier: Apache-2.0
"""Loading of a saved model, whose optimizer then reduces gradients over all ranks."""

from __future__ import annotations

from typing import Any

import keras

from smdist.dataparallel.tensorflow import setup_hints
from smdist.dataparallel.tensorflow.keras.optimizer import DistributedOptimizer


def load_model(
    filepath: Any, custom_optimizers: Any = None, custom_objects: Any = None, **options: Any
) -> Any:
    """Load a saved Keras model and wrap its optimizer in DistributedOptimizer, with its state.

    Args:
        filepath: Path of the saved model.
        custom_optimizers: The user's own optimizer classes that the model needs.
        custom_objects: Other classes and functions of the user, by name, as in Keras.
        options: Arguments of DistributedOptimizer().

    Returns:
        The model, compiled as it was saved, but without XLA.
    """
    setup_hints.note(setup_hints.WEIGHTS)
    known = {kind.__name__: kind for kind in custom_optimizers or ()}
    model = keras.saving.load_model(filepath, custom_objects={**known, **(custom_objects or {})})
    if getattr(model, "optimizer", None) is not None:
        model.optimizer = DistributedOptimizer(model.optimizer, **options)
        model.jit_compile = False
    return model
