# SPDX-License-Identifier: Apache-2.0
"""Models of keras.applications and others on two, three and four stages: `make keras-matrix`."""

import pytest
from keras_comparison import compare


@pytest.mark.timeout(900)
@pytest.mark.parametrize("size", [2, 3, 4])
@pytest.mark.parametrize(
    "name",
    [
        *("ResNet50", "MobileNetV3Small", "EfficientNetB0", "DenseNet121", "ConvNeXtTiny"),
        *("unet", "gpt", "translation"),
    ],
)
def test_matrix(keras_world, name, size):
    """Models of keras.applications and others on two, three and four stages.

    One step of microbatches of 8 samples: further steps, or normalization over fewer samples, would
    show how rounding errors grow.
    """
    compare(keras_world, name, size=size, deadline=800, steps=1, batch=32)
