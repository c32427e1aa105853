# SPDX-License-Identifier: Apache-2.0
"""Groups that can take two levels, and places of their ranks: a pure function of what is known."""

import pytest

from smdist.dataparallel.torch.two_levels import Description, layout_of, reason_for_staging


def described(hosts, devices=None, faults=None):
    return [
        Description(
            host=host,
            device=(devices or {}).get(rank, f"GPU {rank}"),
            fault=(faults or {}).get(rank, ""),
        )
        for rank, host in enumerate(hosts)
    ]


@pytest.mark.parametrize("hosts", ["aa", "aabb", "aaabbbccc", "bbaa"])
def test_equal_hosts_can(hosts):
    assert reason_for_staging(described(hosts)) is None


@pytest.mark.parametrize(
    ("hosts", "devices", "faults", "reason"),
    [
        ("ab", {}, {}, "each host has one rank of the group"),
        ("aab", {}, {}, "the hosts have 1 to 2 ranks of the group"),
        ("abab", {}, {}, "the ranks of each host do not follow each other"),
        ("aabb", {2: "x", 3: "x"}, {}, "ranks 2 and 3 use the same GPU"),
        ("aa", {}, {1: "why"}, "rank 1 cannot use the GPUs of its host together: why"),
    ],
)
def test_others_cannot(hosts, devices, faults, reason):
    assert reason == reason_for_staging(described(hosts, devices, faults))


def test_hosts_may_have_gpus_of_the_same_name():
    """As emulated hosts do, which share the GPUs of one machine."""
    assert reason_for_staging(described("aabb", dict(enumerate("xyxy")))) is None


def test_places_cover_the_group_once():
    for hosts in (["a"] * 4, [*"aabb"], [*"aabbcc"], [*"aaabbb"]):
        places = [layout_of(rank, hosts) for rank in range(len(hosts))]
        for rank, place in enumerate(places):
            assert rank in place.host_members()
            assert {hosts[rank]} == {hosts[other] for other in place.host_members()}
            assert rank in place.peers_between_hosts()
            assert place.num_hosts == len({hosts[each] for each in place.peers_between_hosts()})
