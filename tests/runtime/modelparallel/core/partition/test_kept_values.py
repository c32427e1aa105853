# SPDX-License-Identifier: Apache-2.0
"""Values that several units keep for the backward pass: there on each stage that keeps one."""

from dataclasses import replace
from itertools import combinations

import pytest
from hypothesis import given as drawn
from hypothesis import settings
from hypothesis import strategies as st
from split_graphs import chain, costs, costs_of, given, glue, graph, graphs, unit

from smdist.modelparallel.core.cost import NodeCost, StateBytes
from smdist.modelparallel.core.partition import assigned, partition
from smdist.modelparallel.core.partition.memory_limit import DoesNotFitError
from smdist.modelparallel.core.placement import place, placed_units

STATE = StateBytes(weight=1, gradient=0, optimizer=0)


def with_keeps(prices, **keeps):
    """The same costs with the values that nodes keep."""
    nodes = {name: replace(prices.of(name), keeps=kept) for name, kept in keeps.items()}
    return replace(prices, nodes={**prices.nodes, **nodes})


def saved(net, prices, **stage_of):
    """Saved bytes of each stage."""
    num_stages = max(stage_of.values()) + 1
    found = assigned(net, prices, stage_of, num_stages=num_stages)
    return [cost.saved_bytes for cost in found.costs]


def line():
    """Three units that all keep what the first one writes: 8 bytes, which count at it."""
    net = graph(given(), unit("a", "ids"), unit("b", "a"), unit("c", "a", "b"))
    return net, with_keeps(costs(saved={"a": 10, "b": 1, "c": 2}), a=("a",), b=("a",), c=("a",))


def test_a_value_that_two_stages_keep_counts_on_both():
    """Once on each, however many units keep it there."""
    net, prices = line()

    assert [13] == saved(net, prices, a=0, b=0, c=0)
    assert [10, 11] == saved(net, prices, a=0, b=1, c=1)
    assert [11, 10] == saved(net, prices, a=0, b=0, c=1)
    assert [10, 9, 10] == saved(net, prices, a=0, b=1, c=2)


def test_it_counts_on_the_stage_that_wrote_it_too():
    """Where the first unit that keeps it is on a later stage."""
    net = graph(given(), unit("a", "ids"), unit("b", "a"), unit("c", "a"), unit("d", "b", "c"))
    prices = with_keeps(costs(saved={"b": 8}), b=("a",), c=("a",))

    assert [8, 8] == saved(net, prices, a=0, c=0, b=1, d=1)


def test_what_one_unit_keeps_counts_once():
    """It is in what that unit saves."""
    net, prices = chain(1, 1)
    prices = with_keeps(prices, u0=("ids",), u1=("u0",))

    assert [0, 0] == saved(net, prices, u0=0, u1=1)


def test_what_every_stage_computes_for_itself_is_in_no_stage_twice():
    """Glue on both stages saves its result on both; the units that keep it add nothing."""
    net = graph(given(), glue("g", "ids"), unit("a", "g"), unit("b", "a", "g"))
    prices = with_keeps(costs(saved={"g": 3, "a": 1}), g=("g",), a=("g",), b=("g",))

    assert (0, 1) == place(net, {"a": 0, "b": 1}).stages["g"]
    assert [1 + 3, 3] == saved(net, prices, a=0, b=1)


def test_a_limit_counts_it_on_both_sides():
    """The cut goes where nothing is kept twice, though times would have it elsewhere."""
    net, prices = chain(1, 1, 2)
    prices = with_keeps(
        replace(prices, nodes={n: replace(c, saved_bytes=8) for n, c in prices.nodes.items()}),
        u1=("u1",),
        u2=("u1",),
    )
    options = {"num_stages": 2, "state": StateBytes(weight=0, gradient=0, optimizer=0)}

    assert (("u0", "u1"), ("u2",)) == partition(net, prices, **options).stages
    assert (16, 16) == partition(net, prices, **options).peak_bytes
    prices = with_keeps(prices, u0=("u0",), u1=(), u2=())

    assert (16, 8) == partition(net, prices, **options).peak_bytes


def test_sums_name_no_values():
    """What is in them is counted by whoever adds up."""
    one = NodeCost(saved_bytes=3, keeps=("a",))

    assert NodeCost(saved_bytes=6) == one + one


@st.composite
def problems(draw):
    net = draw(graphs(max_nodes=10, min_units=3))
    num_stages = draw(st.integers(1, min(4, len(placed_units(net)))))
    flight = st.lists(st.integers(1, 3), min_size=num_stages, max_size=num_stages)
    prices, known, keeps = draw(costs_of(net)), [], {}
    for node in net.nodes:
        known.extend(value.name for value in node.writes)
        keeps[node.name] = tuple(draw(st.lists(st.sampled_from(known), unique=True, max_size=3)))
    return net, with_keeps(prices, **keeps), num_stages, draw(flight)


def sizes(net, prices, stage_of, in_flight):
    """What each stage holds, written down without the partitioner."""
    placement, room, first = place(net, stage_of), {}, {}
    written = {value.name: value.num_bytes for node in net.nodes for value in node.writes}
    names = [value for node in net.nodes for value in prices.of(node.name).keeps]
    for value in dict.fromkeys(name for name in names if names.count(name) > 1):
        keeper = next(node.name for node in net.nodes if value in prices.of(node.name).keeps)
        room.setdefault(keeper, prices.of(keeper).saved_bytes)
        first[value] = keeper, min(written[value], room[keeper])
        room[keeper] -= first[value][1]
    for stage in range(placement.num_stages):
        here = [node for node in net.nodes if stage in placement.stages[node.name]]
        kept = {value for node in here for value in prices.of(node.name).keeps}
        again = [first[value] for value in kept if value in first]
        each = sum(prices.of(node.name).saved_bytes for node in here)
        each += sum(size for name, size in again if stage not in placement.stages[name])
        held = {name for node in here for name in node.parameters}
        work = max((prices.of(node.name).workspace_bytes for node in here), default=0)
        yield sum(net.parameter[n].num_elements for n in held) + in_flight[stage] * each + work


def every_cut(net, num_stages):
    names = [each.name for each in placed_units(net)]
    for cuts in combinations(range(1, len(names)), num_stages - 1):
        yield {name: sum(at >= cut for cut in cuts) for at, name in enumerate(names)}


@settings(max_examples=100, deadline=None)
@drawn(problems())
def test_the_fullest_stage_is_as_empty_as_can_be(drawn):
    """As trying every cut finds; where parameters are tied it may be emptier still."""
    net, prices, num_stages, flight = drawn
    least = min(max(sizes(net, prices, cut, flight)) for cut in every_cut(net, num_stages))
    found = partition(
        net, prices, num_stages=num_stages, in_flight=flight, state=STATE, memory_weight=1.0
    )
    tied = any(1 < sum(name in n.parameters for n in net.nodes) for name in net.parameter)

    assert tuple(sizes(net, prices, found.stage_of, flight)) == found.peak_bytes
    assert tied or least == max(found.peak_bytes)


@settings(max_examples=100, deadline=None)
@drawn(problems(), st.integers(1, 60))
def test_cuts_within_a_limit_are_found_where_there_are_any(drawn, limit):
    """No run that fits was taken for one that does not."""
    net, prices, num_stages, flight = drawn
    least = min(max(sizes(net, prices, cut, flight)) for cut in every_cut(net, num_stages))
    options = {"num_stages": num_stages, "in_flight": flight, "state": STATE}
    if least > limit:
        with pytest.raises(DoesNotFitError) as caught:
            partition(net, prices, device_bytes=limit, **options)
        assert least == caught.value.least_bytes
        return
    found = partition(net, prices, device_bytes=limit, **options)

    assert limit >= max(found.peak_bytes)
