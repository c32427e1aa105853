# SPDX-License-Identifier: Apache-2.0
"""One world of four ranks for all tests of this room."""

import pytest
from ranks import World


@pytest.fixture(scope="session")
def world():
    """Four processes that have imported torch."""
    world = World(4)
    yield world
    world.close()
