# SPDX-License-Identifier: Apache-2.0
"""How large the step is: without an import of TensorFlow."""

LAYERS = 24
FORWARD = 0.1  # seconds of compute in a step, evenly over the layers
BACKWARD = 0.2
GRADIENT_BYTES = 25 << 20
FUSION_BYTES = 4 << 20
