# SPDX-License-Identifier: Apache-2.0
"""Size of the step, in a module that does not import TensorFlow."""

LAYERS = 24
FORWARD = 0.1  # seconds of computation per step, spread evenly over the layers
BACKWARD = 0.2
GRADIENT_BYTES = 25 << 20
FUSION_BYTES = 4 << 20
