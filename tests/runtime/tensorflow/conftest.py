# SPDX-License-Identifier: Apache-2.0
"""One world of three ranks for all tests of this room."""

import pytest
from tf_ranks import TensorFlowWorld


@pytest.fixture(scope="session")
def tf_world():
    """Three processes that have imported TensorFlow; most tests take two."""
    world = TensorFlowWorld(3)
    yield world
    world.close()
