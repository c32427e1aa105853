# SPDX-License-Identifier: Apache-2.0
"""Address at which other ranks reach this rank."""

import pytest

from sagemaker_dist.errors import LaunchError
from smdist.config import RankConfig
from smdist.dataparallel.rendezvous.address import own_address


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


def test_a_given_address_counts():
    assert "10.1.2.3" == own_address(config(address="10.1.2.3", interface="lo"))
