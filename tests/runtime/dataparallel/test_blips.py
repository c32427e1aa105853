# SPDX-License-Identifier: Apache-2.0
"""Interruptions of the network between two hosts: short ones end nothing, long ones name the host.

The hosts are network namespaces, so these tests need root.
"""

import itertools
import os
import shutil
import sys
import time
from pathlib import Path

import pytest
from cut_hosts import cut_hosts, fault_of_namespaces

SCRIPT = str(Path(__file__).parent / "scripts" / "blips.py")
PORT = "29571"
WATCH = str(Path(__file__).parent / "scripts" / "watch.py")
WATCH_PORT = 29_600
SHORT, LONG = 1000, 25_000_000  # floats
SILENCE = 5  # seconds, the least that the option takes
SLACK = 5  # seconds that a busy machine may take in addition

pytestmark = [
    pytest.mark.timeout(600),
    pytest.mark.skipif(bool(fault_of_namespaces()), reason=fault_of_namespaces() or "-"),
]


class TwoRanks:
    """Ranks 0 and 1 on two hosts, each a process that sums when it reads a line."""

    def __init__(self, hosts, silence_seconds, **variables):
        shared = {
            "MASTER_ADDR": hosts.address(0),
            "MASTER_PORT": PORT,
            "SMDIST_SILENCE_SECONDS": str(silence_seconds),
            "SMDIST_SECRET": "a secret between tests",
            "SMDIST_LANES": "2",
            "SMDIST_CHUNK_BYTES": "262144",
            "SMDIST_ONE_SHOT_BYTES": "0",
            "SMDIST_SINGLE_OWNER_BYTES": "0",
            "SMDIST_ARRIVING_BYTES": "0",
            **variables,
        }
        self.processes = [
            hosts.start(
                host,
                [sys.executable, SCRIPT],
                env={
                    **os.environ,
                    **shared,
                    "RANK": str(host),
                    "SMDIST_HOST_ID": f"host-{host}",
                    "SMDIST_ADDRESS": hosts.address(host),
                },
            )
            for host in (0, 1)
        ]
        for each in self.processes:
            assert "ready\n" == each.stdout.readline()

    def begin(self, count, *ranks):
        """Let these ranks begin a sum of `count` floats."""
        for rank in ranks or (0, 1):
            self.processes[rank].stdin.write(f"{count}\n")
            self.processes[rank].stdin.flush()

    def answers(self, *ranks):
        """Return what these ranks print next."""
        return [self.processes[rank].stdout.readline().strip() for rank in ranks or (0, 1)]

    def sum(self, count=SHORT):
        self.begin(count)
        return self.answers()

    def close(self):
        for each in self.processes:
            each.kill()
            each.communicate()


@pytest.fixture
def two_ranks():
    """Function that starts two ranks on hosts of their own, which end with the test."""
    with cut_hosts() as hosts:
        started = []

        def start(silence_seconds, **variables):
            started.append(TwoRanks(hosts, silence_seconds, **variables))
            return hosts, started[-1]

        yield start
        for each in started:
            each.close()


WAYS = ((0,), (1,), (0, 1))  # hosts whose packets are lost
IS_WHOLE = os.environ.get("SMDIST_TEST_BLIPS") == "all"  # `make blips`: half an hour of waiting


def interrupt(hosts, ranks, senders, seconds, count, resets=()):
    """Cut the network for some seconds, with a sum under way or without; return the ranks' answers.

    `count` is the number of floats of that sum; 0: the ranks are idle meanwhile. `resets` are the
    hosts whose ends of the connections a firewall resets: the other end learns of it only if the
    network delivers what that host sends.
    """
    if count:
        ranks.begin(count)
    hosts.cut(*senders)
    for host in resets:
        hosts.kill_sockets(host)
    time.sleep(seconds)
    hosts.restore(*senders)
    if not count:
        ranks.begin(SHORT)
    return ranks.answers()


def check_loss(hosts, ranks, count):
    """Cut the network for good, with a sum of `count` floats under way or, for 0, without one."""
    if count:
        ranks.begin(count)
    began = time.monotonic()
    hosts.cut(0, 1)
    if not count:
        time.sleep(SILENCE + 1)
        ranks.begin(SHORT)
    first, second = (each.split() for each in ranks.answers())

    assert (["lost", "1"], ["lost", "0"]) == (first[:2], second[:2])
    assert SILENCE + 1 + SLACK > time.monotonic() - began


def test_a_short_interruption_ends_nothing_and_a_lost_host_is_named(two_ranks):
    """In each direction, during a sum and without one; each rank names the other one at the end."""
    hosts, ranks = two_ranks(SILENCE)

    assert ["sums"] * 2 == ranks.sum()
    for senders, count in (((0,), LONG), ((1,), SHORT), ((0, 1), 0)):
        assert ["sums"] * 2 == interrupt(hosts, ranks, senders, 1.5, count)
    check_loss(hosts, ranks, LONG)


def test_connections_that_are_reset_are_replaced_and_a_killed_rank_is_named(two_ranks):
    """Both ends learn of it, or one of them alone; at the end the kernel of a killed rank does."""
    hosts, ranks = two_ranks(60)

    assert ["sums"] * 2 == ranks.sum()
    for case in (
        ((), 0, LONG, (0,)),
        ((), 0, 0, (1,)),
        ((0, 1), 1, LONG, (0,)),
        ((0,), 1, 0, (1,)),
    ):
        assert (case, ["sums"] * 2) == (case, interrupt(hosts, ranks, *case))
    ranks.begin(LONG)
    ranks.processes[1].kill()
    ranks.processes[1].wait()
    killed = time.monotonic()
    assert ["lost", "1"] == ranks.answers(0)[0].split()[:2]
    assert 0.5 + SLACK > time.monotonic() - killed


@pytest.mark.skipif(shutil.which("iptables") is None, reason="iptables is not installed")
def test_one_silent_connection_is_replaced_while_another_is_answered(two_ranks):
    """A firewall drops the packets of one lane alone."""
    hosts, ranks = two_ranks(SILENCE)

    assert ["sums"] * 2 == ranks.sum()
    lanes = {each for each in hosts.connections(0) if PORT not in each}
    assert 2 == len(lanes)
    dropped = min(lanes)
    hosts.drop_connection(dropped)
    for _ in range(3):
        assert ["sums"] * 2 == ranks.sum(LONG)
    assert dropped not in hosts.connections(0)


def test_a_host_that_is_removed_is_named(two_ranks, tmp_path):
    """Its processes end and its network is gone at once, so that nothing refuses connections.

    The launchers of both hosts are connected, and that of the other host is informed by its kernel.
    """
    file = tmp_path / "0" / "ended-hosts"
    hosts, ranks = two_ranks(60, SMDIST_ENDED_HOSTS_FILE=str(file))
    addresses = [hosts.address(0), hosts.address(1)]
    launchers = []
    for host in (0, 1):
        (folder := tmp_path / str(host)).mkdir()
        command = [sys.executable, WATCH, str(host), str(WATCH_PORT), str(folder), *addresses]
        launchers.append(hosts.start(host, command))
        assert "ready\n" == launchers[-1].stdout.readline()
    wait_until(lambda: any(here == str(WATCH_PORT) for here, _ in hosts.connections(0)))
    assert ["sums"] * 2 == ranks.sum()
    ranks.begin(SHORT, 0)
    hosts.cut(0)  # its dials are lost from now on, as after the network of the other host is gone
    killed = time.monotonic()
    for each in (launchers[1], ranks.processes[1]):
        each.kill()
        each.wait()
    hosts.unplug(1)

    assert ["lost", "1"] == ranks.answers(0)[0].split()[:2]
    assert 0.5 + SLACK > time.monotonic() - killed
    assert [addresses[1]] == file.read_text().split()
    for each in launchers:
        each.kill()
        each.communicate()


def wait_until(condition):
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


@pytest.mark.slow
def test_a_host_that_is_lost_between_sums_is_named(two_ranks):
    hosts, ranks = two_ranks(SILENCE)

    assert ["sums"] * 2 == ranks.sum()
    check_loss(hosts, ranks, 0)


@pytest.mark.slow
@pytest.mark.parametrize("protection", ["off", "mac", "tls"])
def test_connections_that_are_reset_during_an_interruption_are_replaced(two_ranks, protection):
    """The network is gone for 5, 15 and 40 s, in one direction or both, and one end is reset."""
    integrity = "off" if protection == "tls" else protection
    encrypt = str(int(protection == "tls"))
    hosts, ranks = two_ranks(60, SMDIST_INTEGRITY=integrity, SMDIST_ENCRYPT=encrypt)

    assert ["sums"] * 2 == ranks.sum()
    cases = [((0,), 5, LONG, (0,)), ((1,), 5, 0, (0,)), ((0, 1), 15, LONG, (1,))]
    if IS_WHOLE:
        cases += itertools.product(WAYS, (5,), (LONG, 0), ((0,), (1,)))
        cases += [((0, 1), 15, LONG, (0,)), ((0,), 15, 0, (1,)), ((0, 1), 40, LONG, (1,))]
    for case in cases:
        assert (case, ["sums"] * 2) == (case, interrupt(hosts, ranks, *case))


@pytest.mark.slow
@pytest.mark.parametrize("seconds", [5, 15, 40])
def test_interruptions_below_the_default_end_nothing(two_ranks, seconds):
    hosts, ranks = two_ranks(60)

    assert ["sums"] * 2 == ranks.sum()
    for case in itertools.product(WAYS, (LONG, 0)) if IS_WHOLE else [((0, 1), LONG)]:
        senders, count = case
        answers = interrupt(hosts, ranks, senders, seconds, count)
        assert (case, ["sums"] * 2) == (case, answers)
    ranks.begin(LONG)
    hosts.unplug(1)
    time.sleep(seconds)
    hosts.plug(1)
    assert ["sums"] * 2 == ranks.answers()
