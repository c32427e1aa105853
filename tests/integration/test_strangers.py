# SPDX-License-Identifier: Apache-2.0
"""A connection without the job's secret is dropped and logged, and the job continues."""

import os
import socket

import psutil
import pytest
from jobs import ranks_of, wait_until

from sagemaker_dist import DataParallel


def listening_ports(process):
    """Return the ports on which a rank's engine listens."""
    connections = process.net_connections("tcp")
    return [c.laddr for c in connections if c.status == psutil.CONN_LISTEN]


def visit(address, greeting):
    """Connect, send some bytes, and return whether the connection was closed."""
    with socket.create_connection(address, timeout=10) as visitor:
        visitor.sendall(greeting)
        visitor.settimeout(10)
        try:
            while visitor.recv(4096):
                pass
        except ConnectionResetError:
            pass
    return True


@pytest.mark.slow
def test_strangers_are_dropped_and_the_job_goes_on(job, channel, capfd):
    """Random bytes, or the right magic with a wrong secret, do not disturb the job."""
    distribution = DataParallel(processes_per_host=1)
    estimator = job("train.py", distribution=distribution, hyperparameters={"epochs": 15})
    estimator.fit({"training": channel}, wait=False)
    name = estimator.latest_training_job.name
    ranks = wait_until(lambda: len(r := ranks_of(name, "train.py")) == 2 and r)
    doors = wait_until(lambda: listening_ports(ranks[1]))

    assert visit(doors[0], os.urandom(4096))
    assert visit(doors[0], b"SMD1" + os.urandom(4096))
    estimator.latest_training_job.wait()
    estimator.logs()
    log = capfd.readouterr()
    assert "smdist: " in log.out + log.err
    assert "Completed" == estimator.latest_training_job.describe()["TrainingJobStatus"]
