# SPDX-License-Identifier: Apache-2.0
"""Capture of Keras models: the layers of the forward pass, and the values between them."""

from smdist.modelparallel.tensorflow.keras_capture.automatic_names import automatic_names_kept
from smdist.modelparallel.tensorflow.keras_capture.capture_error import KerasCaptureError
from smdist.modelparallel.tensorflow.keras_capture.capture_model import capture
from smdist.modelparallel.tensorflow.keras_capture.keras_graph import graph_of
from smdist.modelparallel.tensorflow.keras_capture.layer_program import LayerProgram

__all__ = ["KerasCaptureError", "LayerProgram", "automatic_names_kept", "capture", "graph_of"]
