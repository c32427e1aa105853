# SPDX-License-Identifier: Apache-2.0
"""The processes in which the tests of the test device run."""

import pytest
from device_process import DeviceProcesses


def nothing():
    """Load the device, which builds it if needed."""


@pytest.fixture(scope="session")
def device_processes():
    """A process for each test, in which the device is loaded."""
    processes = DeviceProcesses()
    processes.run(nothing, deadline=170)
    yield processes
    processes.close()
