# SPDX-License-Identifier: Apache-2.0
"""A host whose processes end together with its network, as a container that is removed.

Real launchers on emulated hosts, which are network namespaces, so this test needs root.
"""

import pytest
from cut_hosts import fault_of_namespaces

from benchmarks.faults.actions import host_removed
from benchmarks.faults.fault_row import Expected, Row
from benchmarks.faults.hosts_job import HostsJob, wait_until
from benchmarks.harness.hosts import EmulatedHosts

SIZE = 3
SLACK = 10  # seconds that a busy machine may take in addition; without the watch, it takes 60
ROW = Row(
    name="host removed",
    expected=Expected(within=0.5, kinds=("lost",)),
    environ={"SMDIST_SECRET": "a secret of this job alone", "SMDIST_SILENCE_SECONDS": "60"},
    options={"silence_seconds": 60},
    test="",
)

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(600),
    pytest.mark.skipif(bool(fault_of_namespaces()), reason=fault_of_namespaces() or "-"),
]


def error_of(job, rank):
    return next((each for each in job.events(rank) if each["event"] == "error"), None)


@pytest.mark.parametrize("number", [1, 0], ids=["another host", "the first host"])
def test_a_removed_host_is_named_at_once(number):
    """Every other rank raises, and names its rank; the launchers know it from its kernel."""
    with EmulatedHosts(SIZE, "1gbit", name="rm", network="10.78.0") as emulated:
        job = HostsJob(emulated, [ROW], "torch")
        try:
            job.start()
            job.wait_for_event("ready")
            host_removed(number)(job)
            others = [rank for rank in range(SIZE) if rank != number]
            wait_until(lambda: all(error_of(job, rank) for rank in others), 40, "errors")
            for rank in others:
                error = error_of(job, rank)
                assert ("lost", number) == (error["kind"], error["culprit"])
                assert 0.5 + SLACK > error["at"] - job.fault_at
        finally:
            job.close()
