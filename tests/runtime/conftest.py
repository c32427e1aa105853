# SPDX-License-Identifier: Apache-2.0
"""One world of four ranks for all tests of this room, and the processes of the test device."""

import pytest
from device_process import DeviceProcesses
from ranks import World


@pytest.fixture(scope="session")
def world():
    """Four processes that have imported torch."""
    world = World(4)
    yield world
    world.close()


def nothing():
    """Load the device, which builds it if needed."""


@pytest.fixture(scope="session")
def device_processes():
    """A process for each test, in which the test device is loaded."""
    processes = DeviceProcesses()
    processes.run(nothing, deadline=170)
    yield processes
    processes.close()
