# SPDX-License-Identifier: Apache-2.0
"""Degrees of AWS's model parallel library fit the world, or the nearest that do are named."""

import re
from itertools import product

import pytest
from error_fields import fields_of
from smp_requests import PP, SDP, TP

from sagemaker_dist.contract import smp_world_faults


def world_faults(version, hosts, processes, **degrees):
    return list(
        smp_world_faults(degrees, version=version, num_hosts=hosts, processes_per_host=processes)
    )


@pytest.mark.parametrize(
    ("version", "hosts", "processes", "degrees", "numbers"),
    [
        (1, 3, 4, {PP: 2, TP: 4}, [2, 4, 6, 12]),
        (1, 1, 8, {"partitions": 3}, [3, 2, 4]),
        (1, 2, 4, {SDP: 3}, [3, 2, 4]),
        (1, 1, 1, {PP: 2}, [2, 1]),
        (2, 2, 8, {TP: 4, "hybrid_shard_degree": 8}, [4, 16]),
        (2, 2, 8, {"expert_parallel_degree": 6}, [3, 4, 8]),
        (2, 1, 8, {TP: 4, "context_parallel_degree": 4, "hybrid_shard_degree": 0}, [2, 8]),
    ],
)
def test_degrees_that_do_not_fit_the_world_are_told(version, hosts, processes, degrees, numbers):
    """With the numbers of hosts, and the degrees, that would fit nearest."""
    (fault,) = world_faults(version, hosts, processes, **degrees)

    assert [(next(iter(degrees)), "indivisible")] == fields_of(fault)
    assert numbers == [int(each) for each in re.findall(r"\d+", fault.hint)]


def test_text_of_degrees_that_do_not_fit():
    (fault,) = world_faults(1, 3, 4, **{PP: 2, TP: 4})

    assert str(fault) == (
        f"a world of 12 (3 hosts x 4 processes) has {PP}=2 and {TP}=4: 2 x 4 = 8 ranks hold a whole"
        " model, so the number of ranks (12) must be a multiple of 8. Use 2 or 4 hosts, or a"
        " product of 6 or 12."
    )


@pytest.mark.parametrize(
    ("version", "hosts", "processes"), [(None, 1, 8), (1, None, 8), (1, 1, None), (2, None, None)]
)
def test_what_is_not_known_is_not_checked(version, hosts, processes):
    assert [] == world_faults(version, hosts, processes, **{TP: 3})


def test_a_degree_that_is_wrong_by_itself_is_left_to_the_other_check():
    assert [] == world_faults(1, 1, 8, **{TP: "3", PP: True, SDP: None})
    assert [] == world_faults(2, 1, 8, **{TP: -3, "hybrid_shard_degree": 0})


def test_two_names_for_the_stages_count_once():
    """Both together are a fault already."""
    assert [] == world_faults(1, 1, 8, **{"partitions": 8, PP: 8})


def arranged(ranks, *sizes):
    """Whether ranks can be dealt out so that every place of a grid of `sizes` has as many."""
    places = list(product(*map(range, sizes)))
    taken = [places[rank % len(places)] for rank in range(ranks)]
    return 1 == len({taken.count(place) for place in places})


DEGREES = range(1, 13)
WORLDS = list(product(range(1, 6), range(1, 9)))


@pytest.mark.parametrize(("hosts", "processes"), WORLDS)
def test_version_1_fits_every_small_world_that_can_be_arranged(hosts, processes):
    """Each copy has every stage and every slice; each stage's ranks fall into sharding groups."""
    ranks = hosts * processes
    for stages, slices in product(DEGREES, DEGREES):
        expected = arranged(ranks, stages, slices)

        assert expected == (not world_faults(1, hosts, processes, **{PP: stages, TP: slices}))
    for stages, shards in product(DEGREES, DEGREES):
        replicas = [rank for rank in range(ranks) if rank % stages == 0]
        expected = arranged(ranks, stages) and arranged(len(replicas), shards)

        assert expected == (not world_faults(1, hosts, processes, **{PP: stages, SDP: shards}))


@pytest.mark.parametrize(("hosts", "processes"), WORLDS)
def test_version_2_fits_every_small_world_that_can_be_arranged(hosts, processes):
    """Slices and shards, and slices and sequences, form grids; experts form groups."""
    ranks = hosts * processes
    for slices, shards, parts in product((1, 2, 3, 4, 8), range(9), (1, 2, 3, 4)):
        expected = arranged(ranks, slices, shards or 1) and arranged(ranks, slices, parts)
        degrees = {TP: slices, "hybrid_shard_degree": shards, "context_parallel_degree": parts}

        assert expected == (not world_faults(2, hosts, processes, **degrees))
    for experts in DEGREES:
        faults = world_faults(2, hosts, processes, expert_parallel_degree=experts)

        assert arranged(ranks, experts) == (not faults)


@pytest.mark.parametrize(("hosts", "processes"), WORLDS)
def test_the_hint_of_one_degree_works(hosts, processes):
    """Each number of hosts that is named would do, and so would each degree."""
    for degree in DEGREES:
        for fault in world_faults(1, hosts, processes, **{PP: degree}):
            few, rest = fault.hint.removeprefix("Use ").split(" hosts, or ")
            degrees = rest.removeprefix(f"{PP}=")

            for better in few.split(" or "):
                assert [] == world_faults(1, int(better), processes, **{PP: degree})
            for better in degrees.split(" or "):
                assert [] == world_faults(1, hosts, processes, **{PP: int(better)})
