# SPDX-License-Identifier: Apache-2.0
"""Hosts are waited for by name, until the deadline."""

import pytest
from error_fields import fields_of

from sagemaker_dist.contract import World
from sagemaker_dist.errors import LaunchError
from smdist.launch import host_resolution
from smdist.launch.host_resolution import wait_for_hosts


def world(*names):
    return World(hosts=names, processes_per_host=1)


def test_addresses_resolve_to_themselves():
    """Emulated hosts are loopback addresses."""
    pair = world("127.0.0.1", "127.0.0.2")

    assert {host: host for host in pair.hosts} == wait_for_hosts(pair, 5, print)


def test_late_host_is_waited_for():
    tries = {"algo-2": 3}

    def lookup(host):
        tries[host] = tries.get(host, 1) - 1
        if tries[host]:
            raise OSError("not yet")
        return f"10.0.0.{host[-1]}"

    found = wait_for_hosts(world("algo-1", "algo-2"), 10, print, lookup)

    assert {"algo-1": "10.0.0.1", "algo-2": "10.0.0.2"} == found


def test_missing_hosts_are_named(monkeypatch):
    """Progress and the final error name exactly those that are missing."""
    monkeypatch.setattr(host_resolution, "_PROGRESS_SECONDS", 0.1)
    lines = []

    def lookup(host):
        if host != "algo-1":
            raise OSError
        return "10.0.0.1"

    with pytest.raises(LaunchError) as caught:
        wait_for_hosts(world("algo-1", "algo-2", "algo-10"), 0.4, lines.append, lookup)

    assert [("start_timeout_seconds", "timeout")] == fields_of(caught.value)
    assert (
        "these hosts have no IP address: algo-2, algo-10: their names could not be resolved within"
        " 0.4 s. Read the logs of these hosts; if they only start slowly, raise"
        " start_timeout_seconds."
    ) == str(caught.value)
    assert lines
    assert all(line.endswith(" for the addresses of the hosts algo-2, algo-10") for line in lines)


@pytest.mark.parametrize(("host", "address"), [("algo-1", "127.0.0.1"), ("127.0.0.2", "127.0.0.2")])
def test_single_host_asks_no_name_server(host, address):
    """One that does not answer would hold up the job; an emulated host has its own address."""
    assert {host: address} == wait_for_hosts(world(host), 60, print, pytest.fail)
