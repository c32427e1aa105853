# SPDX-License-Identifier: Apache-2.0
"""Process groups of a layout, with real ranks."""

import time
from itertools import product

import pytest
import torch
import torch.distributed as dist

from sagemaker_dist.errors import OptionError
from smdist.modelparallel.core.rank_layout import Axis, RankLayout
from smdist.modelparallel.torch.session.process_groups import make_groups


def _layout(size, pp, strategy="cluster", tp=1):
    return RankLayout(
        size=size,
        pipeline_parallel_degree=pp,
        tensor_parallel_degree=tp,
        placement_strategy=strategy,
    )


def _who_hears_whom(rank, size):
    """Of every layout, axis by axis: what an all-reduce of 2**rank says who was there."""
    found = []
    for strategy, (pp, tp) in product(("cluster", "spread", "PDT"), ((1, 1), (2, 1), (2, 2))):
        groups = make_groups(_layout(size, pp, strategy, tp))
        for axis in Axis:
            mark = torch.tensor(2**rank)
            dist.all_reduce(mark, group=groups.of(axis))
            order = dist.get_process_group_ranks(groups.of(axis))
            found.append((strategy, pp, tp, axis, int(mark), order))
    return found


def test_the_groups_of_every_axis_have_the_ranks_of_the_layout(world):
    """Four ranks, nine layouts, six axes: who takes part, and in which order."""
    for rank, found in enumerate(world.run(_who_hears_whom, hosts="aabb")):
        for strategy, pp, tp, axis, mark, order in found:
            members = _layout(4, pp, strategy, tp).members(axis, rank)

            assert sum(2**member for member in members) == mark
            assert list(members) == order


def _numbers(rank, size):
    groups = make_groups(_layout(size, 2, tp=2))
    axes = ("pp", "tp", "rdp", "dp", "mp")
    return [(getattr(groups, f"{a}_rank"), getattr(groups, f"{a}_size")) for a in axes]


def test_ranks_and_sizes_of_all_axes(world):
    """DPT with 2 x 2 of 4 ranks: tp varies fastest; dp is tp x rdp, mp the whole world."""
    expected = [
        [(0, 2), (0, 2), (0, 1), (0, 2), (0, 4)],
        [(0, 2), (1, 2), (0, 1), (1, 2), (1, 4)],
        [(1, 2), (0, 2), (0, 1), (0, 2), (2, 4)],
        [(1, 2), (1, 2), (0, 1), (1, 2), (3, 4)],
    ]

    assert expected == world.run(_numbers)


def _shared(rank, size):
    whole, halves = make_groups(_layout(size, size)), make_groups(_layout(size, 2))
    return (
        whole.of(Axis.PP) is dist.group.WORLD,
        whole.of(Axis.MP) is dist.group.WORLD,
        whole.of(Axis.DP) is whole.of(Axis.RDP),
        halves.of(Axis.PP) is halves.of(Axis.MP),
        halves.of(Axis.PP) is dist.group.WORLD,
    )


def test_equal_members_share_a_group_and_the_world_is_the_default_group(world):
    """No group is made twice."""
    assert [(True, True, True, True, False)] * 4 == world.run(_shared)


def _time_of_groups(rank, size):
    make_groups(_layout(size, 2, tp=2))
    start = time.perf_counter()
    make_groups(_layout(size, 2, tp=2))
    return time.perf_counter() - start


def test_groups_are_cheap(world):
    """Eight groups of four ranks in far less than a second."""
    assert max(world.run(_time_of_groups)) < 2


def _alone_on_every_axis(rank, size):
    """Ranks that made groups of their own before still agree on what follows."""
    if rank == 1:
        dist.new_group([1], use_local_synchronization=True)
    groups = make_groups(_layout(size, 2))
    mine = torch.tensor(float(rank))
    dist.all_reduce(mine, group=groups.of(Axis.TP))
    dist.broadcast(mine, group=groups.of(Axis.TP), group_src=0)
    pipeline = torch.tensor(float(rank))
    dist.all_reduce(pipeline, group=groups.of(Axis.PP))
    return float(mine), groups.of(Axis.TP).size(), float(pipeline)


def test_a_rank_alone_has_a_group_of_its_own(world):
    """Its collectives give what it gave; the groups after it meet as ever."""
    assert [(0.0, 1, 1.0), (1.0, 1, 1.0), (2.0, 1, 5.0), (3.0, 1, 5.0)] == world.run(
        _alone_on_every_axis
    )


def _wrong_size(rank, size):
    with pytest.raises(OptionError) as caught:
        make_groups(_layout(8, 2))
    return caught.value.about, caught.value.kind, caught.value.what


def test_a_layout_of_another_world_is_refused(world):
    """On every rank, before anything is made."""
    what = "the layout has 8 ranks and the default group has 2"

    assert [(("size",), "difference", what)] * 2 == world.run(_wrong_size, size=2)


def test_without_a_default_group_there_are_none():
    """The error is that torch.distributed is not initialized."""
    with pytest.raises(OptionError) as caught:
        make_groups(_layout(1, 1))

    assert "not_initialized" == caught.value.kind
