# SPDX-License-Identifier: Apache-2.0
"""Several stages on a rank, objectives from outside, and units that are worth opening."""

from itertools import combinations, pairwise

import pytest
from hypothesis import given as drawn
from hypothesis import settings
from hypothesis import strategies as st
from split_graphs import chain, costs, costs_of, graphs

from smdist.modelparallel.core.cost import Link, StateBytes
from smdist.modelparallel.core.partition import next_to_open, partition
from smdist.modelparallel.core.partition.chain import chain_of
from smdist.modelparallel.core.partition.memory_limit import DoesNotFitError
from smdist.modelparallel.core.partition.partition_options import PartitionOptions
from smdist.modelparallel.core.partition.scoring import Scorer
from smdist.modelparallel.core.placement import placed_units

NOTHING = StateBytes(weight=0, gradient=0, optimizer=0)
LOOP = [0, 1, 0, 1]


@settings(max_examples=80, deadline=None)
@drawn(st.data())
def test_cuts_have_the_same_score_with_and_without_placing(data):
    net = data.draw(graphs(max_nodes=10, min_units=2))
    count = len(placed_units(net))
    num_stages = data.draw(st.integers(1, count))
    cuts = data.draw(st.permutations(range(1, count)))[: num_stages - 1]
    numbers = st.lists(st.integers(1, 3), min_size=num_stages, max_size=num_stages)
    options = PartitionOptions(
        in_flight=tuple(data.draw(numbers)),
        rank_of=tuple(stage % 2 for stage in range(num_stages)),
        link=Link(latency_seconds=1.0, bytes_per_second=1.0),
        device_bytes=20,
    )
    prices = data.draw(costs_of(net))
    scorer = Scorer(
        graph=net,
        costs=prices,
        chain=chain_of(net, prices, options.state),
        options=options,
        objective=None,
    )
    ends = (*sorted(cuts), count)

    assert scorer.score(scorer.place(scorer.assign(ends))) == scorer.score_cuts(ends)


def test_the_memory_of_a_rank_is_that_of_all_its_stages():
    """Each stage alone would fit on its rank, but two of the large ones do not fit on one."""
    net, _ = chain(*[1] * 8)
    prices = costs({f"u{n}": 1.0 for n in range(8)}, saved={f"u{n}": 10 for n in (0, 1, 4, 5)})
    found = partition(net, prices, num_stages=4, rank_of=LOOP, device_bytes=20, state=NOTHING)

    assert (20, 20) == found.peak_bytes
    with pytest.raises(DoesNotFitError) as caught:
        partition(net, prices, num_stages=4, rank_of=LOOP, device_bytes=19, state=NOTHING)
    assert 20 == caught.value.least_bytes


def test_the_time_of_a_rank_is_that_of_all_its_stages():
    """Loops of 2 ranks: 12 seconds come out as 6 and 6, not 7 and 5."""
    net, prices = chain(3, 3, 1, 2, 3)
    found = partition(net, prices, num_stages=4, rank_of=LOOP)
    ranks = [sum(found.loads[0::2]), sum(found.loads[1::2])]

    assert [6.0, 6.0] == ranks


def test_an_objective_decides():
    """Here: the second stage should be short, whatever the largest load."""
    net, prices = chain(*[1] * 9)

    def seconds(costs, placement):
        assert 3 == placement.num_stages == len(costs)
        return costs[1].forward_seconds

    found = partition(net, prices, num_stages=3, objective=seconds)

    assert 1.0 == found.loads[1]
    assert 3 == len(found.stages)


def test_an_objective_never_breaks_the_limit_of_memory():
    net, _ = chain(*[1] * 6)
    prices = costs({f"u{n}": 1.0 for n in range(6)}, saved={f"u{n}": 1 for n in range(6)})
    found = partition(
        net,
        prices,
        num_stages=2,
        device_bytes=3,
        state=NOTHING,
        objective=lambda costs, _: costs[1].forward_seconds,
    )

    assert (3, 3) == found.peak_bytes


@settings(max_examples=40, deadline=None)
@drawn(st.lists(st.integers(1, 9), min_size=4, max_size=9))
def test_the_search_of_cuts_ends_where_no_single_move_helps(seconds):
    net, prices = chain(*seconds)
    found = partition(net, prices, num_stages=4, rank_of=LOOP)
    ends = [sum(map(len, found.stages[: stage + 1])) for stage in range(4)]

    def slowest(ends):
        loads = [sum(seconds[a:b]) for a, b in pairwise([0, *ends])]
        return max(sum(loads[0::2]), sum(loads[1::2]))

    least = min(
        slowest([*cuts, len(seconds)])
        for cuts in combinations(range(1, len(seconds)), 3)
        if 1 >= sum(abs(a - b) for a, b in zip(cuts, ends, strict=False))
    )

    assert least == slowest(ends)


def test_the_slowest_unit_of_the_slowest_stage_is_opened_next():
    net, prices = chain(1, 1, 1, 5, 1)
    found = partition(net, prices, num_stages=2)

    assert "u3" == next_to_open(net, prices, found)
    assert "u4" == next_to_open(net, prices, found, closed={"u3"})
    assert None is next_to_open(net, prices, found, closed={"u3", "u4"})


def test_of_equal_units_the_one_beside_the_lighter_neighbour_is_opened():
    """Ten blocks on three stages: one stage has four, and can pass a part on."""
    net, prices = chain(*[1] * 10)
    found = partition(net, prices, num_stages=3)
    full = found.loads.index(4.0)
    expected = {0: found.stages[0][-1], 1: found.stages[1][0], 2: found.stages[2][0]}

    assert expected[full] == next_to_open(net, prices, found)


def test_nothing_is_opened_where_nothing_is_to_be_won():
    net, prices = chain(100, 100, 101)

    assert None is next_to_open(net, prices, partition(net, prices, num_stages=3))
    assert None is next_to_open(net, costs(), partition(net, costs(), num_stages=3))
