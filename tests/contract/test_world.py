# SPDX-License-Identifier: Apache-2.0
"""The arithmetic of ranks holds for every small world."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sagemaker_dist.contract import World, sort_hosts
from sagemaker_dist.errors import OptionError


def test_hosts_are_in_numeric_order():
    """algo-2 comes before algo-10, and 127.0.0.2 before 127.0.0.10."""
    assert ("algo-1", "algo-2", "algo-10") == sort_hosts(["algo-10", "algo-2", "algo-1"])
    assert ("127.0.0.2", "127.0.0.10") == sort_hosts(["127.0.0.10", "127.0.0.2"])


@given(hosts=st.integers(1, 12), processes=st.integers(1, 8), data=st.data())
def test_rank_and_place_are_each_others_inverse(hosts, processes, data):
    """Every rank has one place, and every place one rank."""
    names = tuple(f"algo-{number}" for number in range(1, hosts + 1))
    world = World(hosts=data.draw(st.permutations(names)), processes_per_host=processes)
    places = [(world.host(rank), world.local_rank(rank)) for rank in range(world.size)]

    assert len(set(places)) == world.size == hosts * processes
    assert list(range(world.size)) == [world.rank(*place) for place in places]
    assert names == world.hosts


def test_addresses_are_called_algo():
    """Emulated hosts are addresses on the wire and algo-N in messages."""
    world = World(hosts=("127.0.0.2", "127.0.0.1"), processes_per_host=2)

    assert "algo-2" == world.label("127.0.0.2")
    assert "node-a" == World(hosts=("node-a",), processes_per_host=1).label("node-a")


@pytest.mark.parametrize(("hosts", "processes"), [((), 1), (("a", "a"), 1), (("a",), 0)])
def test_impossible_worlds_are_refused(hosts, processes):
    """No host, a host named twice, no rank."""
    with pytest.raises(OptionError):
        World(hosts=hosts, processes_per_host=processes)
