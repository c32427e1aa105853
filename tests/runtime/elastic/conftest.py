# SPDX-License-Identifier: Apache-2.0
"""Fixture that starts the agents of a job, and ends them."""

import pytest
from elastic_hosts import Hosts


@pytest.fixture
def hosts(tmp_path):
    """Return a function that starts the agents of a job."""
    started = []

    def start(num_hosts, **how):
        started.append(Hosts(tmp_path, num_hosts, **how))
        return started[-1].start()

    yield start
    for each in started:
        each.close()
