# SPDX-License-Identifier: Apache-2.0
"""Processes of the test device that have imported model parallelism."""

import pytest
from device_process import DeviceProcesses


@pytest.fixture(scope="session")
def pipelines():
    """A process for each rank of each call."""
    processes = DeviceProcesses(
        "smdist.modelparallel.torch", "splitting", "checkpoints", "optimizer_offloading"
    )
    yield processes
    processes.close()
