# SPDX-License-Identifier: Apache-2.0
"""Numbers of hardware and memory that make no sense are refused where they are passed."""

from math import inf, nan

import pytest

from sagemaker_dist.errors import OptionError
from smdist.modelparallel.core.cluster import Cluster, Device
from smdist.modelparallel.core.cost import Link, StateBytes

HUGE = 10**400


@pytest.mark.parametrize("name", ["weight", "gradient", "optimizer"])
@pytest.mark.parametrize("number", [nan, inf, -1, "4", None, True, HUGE])
def test_state_is_bytes_an_element(name, number):
    with pytest.raises(OptionError) as caught:
        StateBytes(**{name: number})

    assert (name,) == caught.value.about


@pytest.mark.parametrize("number", [0, -1, nan, "1e9", None, True, HUGE])
def test_link_lets_bytes_through(number):
    with pytest.raises(OptionError) as caught:
        Link(bytes_per_second=number)

    assert ("bytes_per_second",) == caught.value.about


@pytest.mark.parametrize("number", [-1e-9, nan, inf, "1ms", None, HUGE])
def test_latency_is_a_time(number):
    with pytest.raises(OptionError) as caught:
        Link(latency_seconds=number)

    assert ("latency_seconds",) == caught.value.about


@pytest.mark.parametrize("number", [0, -1, "16GiB", 1.5, True, nan, HUGE])
def test_memory_of_a_device_is_a_number_of_bytes(number):
    with pytest.raises(OptionError) as caught:
        Device(memory_bytes=number)

    assert ("memory_bytes",) == caught.value.about


@pytest.mark.parametrize("name", ["flops_per_second", "bytes_per_second"])
@pytest.mark.parametrize("number", [0, -1, "x", nan, inf, True, HUGE])
def test_rates_of_a_device_are_above_zero(name, number):
    with pytest.raises(OptionError) as caught:
        Device(**{name: number})

    assert (name,) == caught.value.about


@pytest.mark.parametrize("name", ["num_hosts", "ranks_per_host"])
@pytest.mark.parametrize("number", [0, -1, True, 1.0, "2", None])
def test_ranks_are_counted(name, number):
    with pytest.raises(OptionError) as caught:
        Cluster(**{name: number})

    assert (name,) == caught.value.about


@pytest.mark.parametrize("hosts", [10**30, HUGE, 1_000_001])
def test_a_cluster_has_an_end(hosts):
    with pytest.raises(OptionError) as caught:
        Cluster(num_hosts=hosts)

    assert ("num_hosts",) == caught.value.about


def test_an_error_says_the_number_and_what_is_valid():
    """A number of more than 40 digits is not written out."""
    with pytest.raises(OptionError) as caught:
        Device(memory_bytes=HUGE)

    assert (
        "memory_bytes of a device is an integer with more than 40 digits: this option is a number"
        " of bytes."
        " Pass an integer from 1 to 1,152,921,504,606,846,976, such as 16 * 2**30 for 16 GiB."
        == str(caught.value)
    )


def test_what_makes_sense_passes():
    """Zero bytes of state, endless bandwidth, a device of which nothing is known."""
    assert 0 == StateBytes(weight=0, gradient=0, optimizer=0).weight
    assert inf == Link().bytes_per_second
    assert None is Device().memory_bytes
    assert 1_000_000 == Cluster(num_hosts=10**6).size
