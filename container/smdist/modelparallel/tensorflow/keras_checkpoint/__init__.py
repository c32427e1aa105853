# SPDX-License-Identifier: Apache-2.0
"""Checkpoints of split Keras models: one file in Keras's own format, whatever the layout."""

from smdist.modelparallel.tensorflow.keras_checkpoint.checkpoint_error import KerasCheckpointError
from smdist.modelparallel.tensorflow.keras_checkpoint.export_saved_model import (
    export_saved_model,
)
from smdist.modelparallel.tensorflow.keras_checkpoint.read_keras_file import epoch_of, load
from smdist.modelparallel.tensorflow.keras_checkpoint.write_keras_file import save, save_weights

__all__ = [
    "KerasCheckpointError",
    "epoch_of",
    "export_saved_model",
    "load",
    "save",
    "save_weights",
]
