# SPDX-License-Identifier: Apache-2.0
"""Who is where: SMP's identities in every small world, and AWS's own examples."""

from itertools import product

import pytest

from sagemaker_dist.errors import OptionError, OptionErrors
from smdist.modelparallel.core.rank_layout import STRATEGIES, Axis, Coordinates, RankLayout

WORLDS = [(pp, tp, rdp) for pp, tp, rdp in product(range(1, 17), repeat=3) if pp * tp * rdp <= 16]


def _layout(pp, tp, rdp, strategy="cluster"):
    return RankLayout(
        size=pp * tp * rdp,
        pipeline_parallel_degree=pp,
        tensor_parallel_degree=tp,
        placement_strategy=strategy,
    )


every_world = pytest.mark.parametrize("strategy", STRATEGIES)


def test_there_are_two_names_and_six_permutations():
    """cluster and spread are two of the orders of D, P and T."""
    assert {"cluster", "spread", "DPT", "DTP", "PDT", "PTD", "TDP", "TPD"} == set(STRATEGIES)


@pytest.mark.parametrize(("name", "letters"), [("cluster", "DPT"), ("spread", "TPD")])
def test_a_name_stands_for_its_letters(name, letters):
    """AWS: cluster is DPT and spread is TPD."""
    for world in WORLDS:
        named, lettered = _layout(*world, name), _layout(*world, letters)

        assert [lettered.coordinates(rank) for rank in range(lettered.size)] == [
            named.coordinates(rank) for rank in range(named.size)
        ]


@pytest.mark.parametrize(
    ("strategy", "replicas", "data_parallel"),
    [
        ("spread", ((0, 4), (1, 5), (2, 6), (3, 7)), ((0, 1, 2, 3), (4, 5, 6, 7))),
        ("cluster", ((0, 1), (2, 3), (4, 5), (6, 7)), ((0, 2, 4, 6), (1, 3, 5, 7))),
    ],
)
def test_eight_ranks_and_two_partitions_are_placed_as_in_the_documentation_of_aws(
    strategy, replicas, data_parallel
):
    """AWS, "Ranking mechanism when using hybrid pipeline and tensor parallelism"."""
    layout = _layout(2, 1, 4, strategy)

    assert replicas == layout.all_members(Axis.MP)
    assert data_parallel == layout.all_members(Axis.DP)


@pytest.mark.parametrize(
    ("strategy", "formula"),
    [
        ("DPT", lambda r: Coordinates(rdp=r // 4, pp=r // 2 % 2, tp=r % 2)),
        ("PTD", lambda r: Coordinates(pp=r // 4, tp=r // 2 % 2, rdp=r % 2)),
    ],
)
def test_eight_ranks_of_two_each_are_placed_as_in_the_documentation_of_aws(strategy, formula):
    """The rightmost letter varies fastest."""
    layout = _layout(2, 2, 2, strategy)

    assert [formula(rank) for rank in range(8)] == [layout.coordinates(rank) for rank in range(8)]


@every_world
def test_every_rank_has_one_place_and_every_place_one_rank(strategy):
    """rank() undoes coordinates(), in every world up to 16."""
    for pp, tp, rdp in WORLDS:
        layout = _layout(pp, tp, rdp, strategy)
        places = [layout.coordinates(rank) for rank in range(layout.size)]

        assert set(places) == {
            Coordinates(pp=p, tp=t, rdp=d) for p in range(pp) for t in range(tp) for d in range(rdp)
        }
        assert list(range(layout.size)) == [
            layout.rank(pp=at.pp, tp=at.tp, rdp=at.rdp) for at in places
        ]


@every_world
def test_sizes_of_groups_are_those_of_smp(strategy):
    """pp x dp, mp x rdp and pp x tp x rdp are the world; mp x dp is where tp is 1."""
    for pp, tp, rdp in WORLDS:
        layout = _layout(pp, tp, rdp, strategy)
        size = {axis: len(layout.members(axis, 0)) for axis in Axis}

        assert layout.size == size[Axis.WORLD]
        assert (pp, tp, rdp) == (size[Axis.PP], size[Axis.TP], size[Axis.RDP])
        assert layout.size == size[Axis.PP] * size[Axis.DP]
        assert layout.size == size[Axis.MP] * size[Axis.RDP]
        assert layout.size == size[Axis.PP] * size[Axis.TP] * size[Axis.RDP]
        assert (tp == 1) == (layout.size == size[Axis.MP] * size[Axis.DP])
        assert layout.data_parallel_degree == size[Axis.DP] == layout.size // pp
        assert layout.reduced_data_parallel_degree * tp == layout.data_parallel_degree


@every_world
def test_a_group_is_who_agrees_on_the_other_axes(strategy):
    """PP, TP and RDP share two coordinates; DP shares the stage, MP the replica."""
    same = {
        Axis.WORLD: lambda at: (),
        Axis.PP: lambda at: (at.tp, at.rdp),
        Axis.TP: lambda at: (at.pp, at.rdp),
        Axis.RDP: lambda at: (at.pp, at.tp),
        Axis.DP: lambda at: at.pp,
        Axis.MP: lambda at: at.rdp,
    }
    for world in WORLDS:
        layout = _layout(*world, strategy)
        at = [layout.coordinates(rank) for rank in range(layout.size)]
        for axis, key in same.items():
            for rank in range(layout.size):
                expected = tuple(r for r in range(layout.size) if key(at[r]) == key(at[rank]))

                assert expected == layout.members(axis, rank)


@every_world
def test_the_groups_of_an_axis_share_out_the_world(strategy):
    """Each rank is in exactly one group of each axis."""
    for world in WORLDS:
        layout = _layout(*world, strategy)
        for axis in Axis:
            groups = layout.all_members(axis)

            assert list(range(layout.size)) == sorted(rank for group in groups for rank in group)
            assert all(layout.members(axis, rank) == group for group in groups for rank in group)


@every_world
def test_members_stand_in_the_order_of_their_axis(strategy):
    """The n-th rank of a pipeline group is rank n of the pipeline; so on every axis."""
    for world in WORLDS:
        layout = _layout(*world, strategy)
        for axis in (Axis.PP, Axis.TP, Axis.RDP):
            for group in layout.all_members(axis):
                places = [getattr(layout.coordinates(rank), axis.value) for rank in group]

                assert list(range(len(group))) == places


def test_two_way_data_of_a_four_way_model_needs_eight_ranks():
    """A world of 6 is refused with the numbers on either side."""
    with pytest.raises(OptionError) as caught:
        RankLayout(size=6, pipeline_parallel_degree=4)

    assert str(caught.value) == (
        "the world has 6 ranks and the model takes 4 (pipeline_parallel_degree 4):"
        " each replica of the model needs 4 ranks, and no rank may be left over."
        " Start 4 ranks for 1 replica or 8 ranks for 2 replicas, or choose a degree that divides 6."
    )
    assert (("pipeline_parallel_degree",), "indivisible") == (caught.value.about, caught.value.kind)


def test_degrees_above_the_world_are_refused():
    """1 rank for a pipeline of 2 over 3-way tensors."""
    with pytest.raises(OptionError) as caught:
        RankLayout(size=1, pipeline_parallel_degree=2, tensor_parallel_degree=3)

    assert (("pipeline_parallel_degree",), "indivisible") == (caught.value.about, caught.value.kind)


def test_all_faults_come_at_once():
    """Two degrees that count nothing and a strategy that is none."""
    with pytest.raises(OptionErrors) as caught:
        RankLayout(
            size=8,
            pipeline_parallel_degree=0,
            tensor_parallel_degree=True,
            placement_strategy="clusters",
        )

    assert [
        (("pipeline_parallel_degree",), "option"),
        (("tensor_parallel_degree",), "option"),
        (("placement_strategy",), "unknown"),
    ] == [(fault.about, fault.kind) for fault in caught.value.faults]


@pytest.mark.parametrize("ask", [lambda it: it.coordinates(4), lambda it: it.members(Axis.PP, -1)])
def test_a_rank_outside_the_world_is_refused(ask):
    """Instead of wrapping around."""
    with pytest.raises(OptionError) as caught:
        ask(RankLayout(size=4, pipeline_parallel_degree=2))

    assert ("rank",) == caught.value.about


def test_a_place_outside_the_grid_is_refused():
    """All coordinates that are wrong, at once."""
    with pytest.raises(OptionErrors) as caught:
        RankLayout(size=4, pipeline_parallel_degree=2).rank(pp=2, rdp=-1)

    assert [("pp",), ("rdp",)] == [fault.about for fault in caught.value.faults]
