# SPDX-License-Identifier: Apache-2.0
"""Address at which other ranks reach this rank."""

import pytest

from sagemaker_dist.errors import LaunchError
from smdist.config import RankConfig
from smdist.dataparallel.rendezvous.address import listening_address, own_address


def config(**options):
    return RankConfig(host_label="algo-1", **options)


def test_the_address_of_an_interface():
    assert "127.0.0.1" == own_address(config(interface="lo"))


def test_an_interface_that_does_not_exist():
    with pytest.raises(LaunchError) as caught:
        own_address(config(interface="nowhere0"))

    assert ("SMDIST_INTERFACE",) == caught.value.about


def test_the_address_of_the_route_to_rank_0():
    assert "127.0.0.1" == own_address(config(master_address="127.0.0.1"))


@pytest.mark.parametrize(
    ("host", "own", "expected"),
    [
        ("127.0.0.1", "127.0.0.1", "127.0.0.1"),
        ("127.0.0.3", "10.0.0.1", "127.0.0.3"),  # nobody else can reach it
        ("localhost", "127.0.0.1", "127.0.0.1"),
        ("10.0.0.1", "10.0.0.1", "10.0.0.1"),
        ("10.0.0.1", "192.168.0.1", ""),  # another network, or translated on the way
        ("algo-1", "10.0.0.1", ""),  # other hosts may resolve it to any address of this host
    ],
)
def test_the_store_listens_where_all_ranks_reach_it_and_nowhere_else(host, own, expected):
    assert expected == listening_address(host, own)


def test_a_given_address_counts():
    assert "10.1.2.3" == own_address(config(address="10.1.2.3", interface="lo"))
