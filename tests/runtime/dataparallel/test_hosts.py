# SPDX-License-Identifier: Apache-2.0
"""Ranks on several emulated hosts: sums by host, the same bits everywhere."""

import pytest
import torch
import torch.distributed as dist

from smdist.config import RankConfig
from smdist.dataparallel.rendezvous.host_identity import host_identity, host_numbers

COUNT = 300_001


def values_of(rank, dtype=torch.float32):
    generator = torch.Generator().manual_seed(rank)
    return (torch.randn(COUNT, generator=generator) * 100).to(dtype)


def reduce_all(rank, size):
    total = values_of(rank)
    dist.all_reduce(total)
    mean = values_of(rank, torch.float16)
    dist.all_reduce(mean, op=dist.ReduceOp.AVG)
    return total, mean


def sum_by_hosts(hosts):
    """Hosts in the order of their first rank, on each host its ranks in order."""
    sums = {}
    for rank, host in enumerate(hosts):
        sums[host] = sums[host] + values_of(rank) if host in sums else values_of(rank)
    first, *others = sums.values()
    for other in others:
        first = first + other
    return first


@pytest.mark.parametrize("hosts", ["aaaa", "aabb", "abab", "aaab", "abcd", "abbb"])
def test_the_layout_on_hosts_alone_decides_the_order_of_additions(world, hosts):
    """Bit for bit what one process computes in that order, on every rank."""
    layout = "aaaa" if hosts == "abcd" else hosts  # nothing to combine on any host
    expected = sum_by_hosts(layout)
    mean = sum(values_of(rank, torch.float16).double() for rank in range(4)) / 4

    for total, average in world.run(reduce_all, hosts=hosts):
        assert torch.equal(expected, total)
        torch.testing.assert_close(mean.half(), average, rtol=1e-3, atol=1e-3)


def move(rank, size):
    gathered = torch.empty(size * 1000)
    dist.all_gather_into_tensor(gathered, torch.full((1000,), float(rank)))
    long = torch.arange(200_000.0) if rank == 1 else torch.zeros(200_000)
    dist.broadcast(long, src=1)
    return gathered[::1000].tolist(), torch.equal(long, torch.arange(200_000.0))


@pytest.mark.parametrize("hosts", ["aabb", "aaab", "abca"])
def test_what_moves_arrives_over_hosts(world, hosts):
    """A gather and a long broadcast whose root is not the first rank."""
    assert [([0.0, 1.0, 2.0, 3.0], True)] * 4 == world.run(move, hosts=hosts)


def test_a_name_makes_a_host():
    """Two emulated hosts on one machine are two."""
    here = host_identity(RankConfig(host_label="x"))
    named = host_identity(RankConfig(host_label="x", host_id="algo-1"))

    assert here == host_identity(RankConfig(host_label="y"))
    assert [0, 1, 0, 2] == host_numbers([here, named, here, named + "0"])
