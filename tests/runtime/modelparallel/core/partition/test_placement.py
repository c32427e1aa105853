# SPDX-License-Identifier: Apache-2.0
"""Where nodes run and what travels."""

import pytest
from hypothesis import given as drawn
from hypothesis import settings
from hypothesis import strategies as st
from split_graphs import given, glue, graph, graphs, unit

from sagemaker_dist.errors import OptionError
from smdist.modelparallel.core.graph import NodeKind
from smdist.modelparallel.core.placement import Tie, place, placed_units, replicated


def travels(placement):
    return [(edge.value, edge.source, edge.target) for edge in placement.edges]


def test_glue_runs_where_the_last_of_its_inputs_comes_from():
    net = graph(given(), unit("a", "ids"), unit("b", "a"), glue("add", "a", "b"), unit("c", "add"))
    placement = place(net, {"a": 0, "b": 1, "c": 2})

    assert (1,) == placement.stages["add"]
    assert [("a", 0, 1), ("add", 1, 2)] == travels(placement)


def test_a_value_goes_straight_to_each_stage_that_reads_it():
    """No stage between passes it on."""
    net = graph(given(), unit("a", "ids"), unit("b", "a"), unit("c", "b"), unit("d", "c", "a"))
    placement = place(net, {"a": 0, "b": 1, "c": 2, "d": 3})

    assert [("a", 0, 1), ("a", 0, 3), ("b", 1, 2), ("c", 2, 3)] == travels(placement)


def test_a_value_that_several_nodes_of_a_stage_want_travels_once():
    net = graph(given(), unit("a", "ids"), unit("b", "a"), glue("g", "a", "b"), unit("c", "g", "a"))
    placement = place(net, {"a": 0, "b": 1, "c": 1})

    assert [("a", 0, 1)] == travels(placement)


def test_masks_run_on_every_stage_that_reads_them_and_on_no_other():
    net = graph(
        given(),
        glue("mask", "ids"),
        glue("unread", "ids"),
        unit("a", "ids", "mask"),
        unit("b", "a"),
        unit("c", "b", "mask"),
    )
    placement = place(net, {"a": 0, "b": 1, "c": 2})

    assert (0, 2) == placement.stages["mask"]
    assert (0, 2) == placement.stages["ids"]
    assert () == placement.stages["unread"]
    assert [("a", 0, 1), ("b", 1, 2)] == travels(placement)


def test_a_unit_without_parameters_that_needs_inputs_alone_is_replicated():
    """Rotary embeddings: cosines and sines do not travel, and nobody names a stage for them."""
    net = graph(
        given(),
        unit("rotary", "ids", own=False),
        unit("a", "ids", "rotary"),
        unit("b", "a", "rotary"),
    )
    placement = place(net, {"a": 0, "b": 1})

    assert (0, 1) == placement.stages["rotary"]
    assert [("a", 0, 1)] == travels(placement)
    assert placement == place(net, {"a": 0, "b": 1, "rotary": 1})


def test_what_draws_random_numbers_is_not_replicated():
    """Two stages would draw different ones."""
    net = graph(
        given(),
        unit("noise", "ids", own=False, is_random=True),
        glue("scaled", "noise"),
        unit("a", "scaled"),
        unit("b", "a", "scaled"),
    )
    placement = place(net, {"noise": 0, "a": 0, "b": 1})

    assert (0,) == placement.stages["scaled"]
    assert [("scaled", 0, 1), ("a", 0, 1)] == travels(placement)


def test_glue_with_parameters_runs_where_it_is_read_first():
    """A class token, expanded to the batch and joined to patches."""
    net = graph(
        given(),
        unit("a", "ids"),
        glue("token", "ids", parameters=["cls"]),
        glue("expanded", "token"),
        unit("b", "a"),
        glue("joined", "expanded", "b"),
        unit("c", "joined"),
    )
    placement = place(net, {"a": 0, "b": 1, "c": 2})

    assert [(1,), (1,), (1,)] == [placement.stages[n] for n in ("token", "expanded", "joined")]
    assert [("a", 0, 1), ("joined", 1, 2)] == travels(placement)


def test_outputs_go_to_the_last_stage():
    """The loss is there."""
    net = graph(
        given(),
        unit("a", "ids"),
        glue("hidden", "a"),
        glue("mask", "ids"),
        unit("b", "a"),
        outputs=("hidden", "b", "mask", "ids"),
    )
    placement = place(net, {"a": 0, "b": 1})

    assert [("a", 0, 1), ("hidden", 0, 1)] == travels(placement)
    assert (1,) == placement.stages["mask"]


def test_a_parameter_of_several_stages_is_a_tie():
    net = graph(
        given(),
        unit("wte", "ids", parameters=["wte.weight"]),
        unit("block", "wte"),
        unit("head", "block", parameters=["wte.weight"]),
    )

    assert (Tie(parameter="wte.weight", stages=(0, 2)),) == place(
        net, {"wte": 0, "block": 1, "head": 2}
    ).ties
    assert () == place(net, {"wte": 0, "block": 0, "head": 0}).ties


def test_stages_need_not_follow_the_order_of_execution():
    """Two towers: the second one stands first, since nothing goes back."""
    net = graph(given(), unit("image", "ids"), unit("text", "ids"), unit("head", "image", "text"))
    placement = place(net, {"image": 1, "text": 0, "head": 1})

    assert [("text", 0, 1)] == travels(placement)


def test_a_value_never_goes_back():
    """The error names the unit behind the glue, and both stages."""
    net = graph(given(), unit("a", "ids"), unit("b", "a"), glue("add", "a", "b"), unit("c", "add"))
    with pytest.raises(OptionError) as error:
        place(net, {"a": 0, "b": 2, "c": 1})

    assert (("stage_of", "c"), "stage_order") == (error.value.about, error.value.kind)
    assert (
        "'c' is on stage 1: it needs what 'b' computes on stage 2, and values are sent to later "
        "stages only. Move 'c' to stage 2 or later, or 'b' to stage 1 or earlier."
        == str(error.value)
    )


def test_all_faults_come_at_once():
    net = graph(given(), unit("a", "ids"), unit("b", "a"), unit("c", "b"), unit("d", "c"))
    with pytest.raises(OptionError) as error:
        place(net, {"a": 3, "bb": 0, "c": 1, "d": "last"})

    assert [
        (("stage_of", "bb"), "unknown"),
        (("stage_of", "d"), "option"),
        (("stage_of", "b"), "missing"),
        (("num_stages",), "empty_stage"),
        (("num_stages",), "empty_stage"),
        (("stage_of", "c"), "stage_order"),
    ] == [(fault.about, fault.kind) for fault in error.value.faults]


@st.composite
def assignments(draw):
    net = draw(graphs(max_nodes=14))
    names = [each.name for each in placed_units(net)]
    is_in_order = draw(st.booleans())
    stages = draw(st.lists(st.integers(0, 3), min_size=len(names), max_size=len(names)))
    dense = sorted(set(stages))  # no stage is left out
    stages = [dense.index(stage) for stage in (sorted(stages) if is_in_order else stages)]
    return net, dict(zip(names, stages, strict=True)), is_in_order


def wanted(net, placement):
    """By value the stages that read it; outputs are read on the last one."""
    stages = {value: set() for value in net.value}
    for value in net.outputs:
        stages[value].add(placement.num_stages - 1)
    for each in net.nodes:
        for value in each.reads:
            stages[value].update(placement.stages[each.name])
    return stages


@settings(max_examples=150, deadline=None)
@drawn(assignments())
def test_every_node_finds_what_it_reads_on_its_stage(drawn):
    """Written there or brought by exactly one edge; edges go forward, and none is for nothing."""
    net, stage_of, is_in_order = drawn
    try:
        placement = place(net, stage_of)
    except OptionError:
        assert not is_in_order
        return
    where = placement.stages
    missing = {
        (value, stage)
        for value, stages in wanted(net, placement).items()
        for stage in stages - set(where[net.writer[value].name])
    }

    assert sorted(missing) == sorted((edge.value, edge.target) for edge in placement.edges)
    assert all(edge.source < edge.target for edge in placement.edges)
    assert all((edge.source,) == where[net.writer[edge.value].name] for edge in placement.edges)


@settings(max_examples=100, deadline=None)
@drawn(assignments().filter(lambda drawn: drawn[2]))
def test_nodes_run_where_the_rules_say(drawn):
    net, stage_of, _ = drawn
    placement, free = place(net, stage_of), replicated(net)
    readers = wanted(net, placement)
    for each in net.nodes:
        where = placement.stages[each.name]
        reading = set().union(*(readers[value.name] for value in each.writes))
        sources = {
            placement.stages[net.writer[value].name][0]
            for value in each.reads
            if net.writer[value].name not in free
        }

        if each.name in free:
            assert reading == set(where)
        elif each.kind is NodeKind.UNIT:
            assert (stage_of[each.name],) == where
        else:
            assert 1 == len(where)
            assert where[0] >= max(sources, default=0)


def test_units_are_in_the_order_of_execution():
    net = graph(given(), unit("a", "ids"), unit("rope", "ids", own=False), unit("b", "a", "rope"))
    names = [each.name for each in placed_units(net)]

    assert ["a", "b"] == names
