# SPDX-License-Identifier: Apache-2.0
"""One world of ranks for all tests of split Keras models."""

import pytest
from tf_ranks import TensorFlowWorld


@pytest.fixture(scope="session")
def keras_world():
    """Two processes that have imported TensorFlow; a test that takes more starts them."""
    world = TensorFlowWorld(2)
    yield world
    world.close()
