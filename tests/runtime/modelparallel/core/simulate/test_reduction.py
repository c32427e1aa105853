# SPDX-License-Identifier: Apache-2.0
"""How long sums over replicas take."""

from dataclasses import replace

import pytest

from smdist.modelparallel.core.cluster import Cluster
from smdist.modelparallel.core.cost import Link
from smdist.modelparallel.core.simulate import (
    ReplicaLinks,
    all_gather_seconds,
    all_reduce_seconds,
    exposed_seconds,
    reduce_scatter_seconds,
    replicas_on,
)

FAST = Link(latency_seconds=1, bytes_per_second=100)
SLOW = Link(latency_seconds=50, bytes_per_second=10)
HOSTS = ReplicaLinks(num_hosts=4, ranks_per_host=1, inside=FAST, across=SLOW)


def test_one_rank_has_nothing_to_sum():
    alone = ReplicaLinks(num_hosts=1, ranks_per_host=1, inside=SLOW, across=SLOW)

    assert 0 == all_reduce_seconds(10**9, alone)


def test_hosts_send_each_byte_twice_but_for_their_own_shards():
    assert 2 * 50 + 2 * (3 / 4) * 1000 / 10 == all_reduce_seconds(1000, HOSTS)


def test_ranks_of_one_host_stay_inside():
    neighbours = ReplicaLinks(num_hosts=1, ranks_per_host=5, inside=FAST, across=SLOW)

    assert 2 * 1 + 2 * (4 / 5) * 1000 / 100 == all_reduce_seconds(1000, neighbours)


def test_a_host_with_several_ranks_sends_as_much_as_one_with_one():
    """They combine before the wire."""
    both = replace(HOSTS, ranks_per_host=8)
    inside = 2 * 1 + 2 * (7 / 8) * 1000 / 100

    assert pytest.approx(all_reduce_seconds(1000, HOSTS) + inside) == all_reduce_seconds(1000, both)


def test_groups_of_one_host_share_its_network():
    shared = replace(HOSTS, groups_per_host=3)

    assert 2 * 50 + 3 * 2 * (3 / 4) * 1000 / 10 == all_reduce_seconds(1000, shared)


def test_partial_sums_of_16_bit_numbers_travel_as_fp32():
    both = replace(HOSTS, ranks_per_host=2)
    more = all_reduce_seconds(1000, both, element_bytes=2) - all_reduce_seconds(1000, both)

    assert pytest.approx((3 / 4) * 1000 / 10) == more
    assert all_reduce_seconds(1000, HOSTS) == all_reduce_seconds(1000, HOSTS, element_bytes=2)


def test_reduce_scatter_and_all_gather_make_an_all_reduce():
    both = replace(HOSTS, ranks_per_host=2)
    halves = reduce_scatter_seconds(999, both, element_bytes=2) + all_gather_seconds(999, both)

    assert halves == all_reduce_seconds(999, both, element_bytes=2)


@pytest.mark.parametrize(
    ("ranks", "num_hosts", "ranks_per_host", "groups_per_host"),
    [
        (range(0, 32, 8), 4, 1, 8),
        (range(0, 32, 2), 4, 4, 2),
        (range(32), 4, 8, 1),
        (range(8), 1, 8, 1),
        (range(7, 10), 2, 2, 4),
        ([5], 1, 1, 8),
    ],
)
def test_replicas_are_counted_by_host(ranks, num_hosts, ranks_per_host, groups_per_host):
    cluster = Cluster(num_hosts=4, ranks_per_host=8, inside=FAST, across=SLOW)
    expected = ReplicaLinks(
        num_hosts=num_hosts,
        ranks_per_host=ranks_per_host,
        inside=FAST,
        across=replace(SLOW, bytes_per_second=8 * SLOW.bytes_per_second),
        groups_per_host=groups_per_host,
    )

    assert expected == replicas_on(cluster, ranks)


def test_a_rank_sends_by_its_share_of_the_network():
    """One replica on a host takes a rank's share beside others; eight on a host take all of it."""
    cluster = Cluster(num_hosts=2, ranks_per_host=8, across=Link(bytes_per_second=100))

    assert pytest.approx(10) == all_reduce_seconds(1000, replicas_on(cluster, [0, 8]))
    assert pytest.approx(10 / 8) == all_reduce_seconds(1000, replicas_on(cluster, range(16)))


def test_a_slow_network_sends_from_the_first_bucket_on():
    """The first quarter of the gradients is complete after 2 of 8 s, and then all take 10 s."""
    assert 2 + 10 - 8 == exposed_seconds(10, 1, 0.25, 8)


def test_a_fast_network_waits_for_the_last_bucket():
    assert 1 == exposed_seconds(4, 1, 0.25, 8)
