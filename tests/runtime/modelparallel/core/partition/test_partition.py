# SPDX-License-Identifier: Apache-2.0
"""Cuts into stages: as good as trying every one."""

import time
from itertools import combinations

import pytest
from hypothesis import given as drawn
from hypothesis import settings
from hypothesis import strategies as st
from split_graphs import chain, costs, costs_of, given, glue, graph, graphs, unit

from smdist.modelparallel.core.cost import Link, StateBytes
from smdist.modelparallel.core.note import Note
from smdist.modelparallel.core.partition import assigned, partition
from smdist.modelparallel.core.partition.memory_limit import DoesNotFitError
from smdist.modelparallel.core.placement import Tie, place, placed_units

STATE = StateBytes(weight=1, gradient=0, optimizer=0)
LINK = Link(latency_seconds=1.0, bytes_per_second=1.0)


def by_hand(net, prices, stage_of, in_flight, link=LINK):
    """Largest load, bytes sent and the fullest stage, written down without the partitioner."""
    placement = place(net, stage_of)
    loads, full = [], []
    for stage in range(placement.num_stages):
        here = [each for each in net.nodes if stage in placement.stages[each.name]]
        held = {name for each in here for name in each.parameters}
        sums = [prices.of(each.name) for each in here]
        out = {edge.value: edge for edge in placement.edges if edge.source == stage}.values()
        into = [edge for edge in placement.edges if edge.target == stage]
        wire = sum(link.seconds(e.num_bytes) * (1 + e.has_gradient) for e in [*out, *into])
        loads.append(sum(cost.seconds for cost in sums) + wire)
        full.append(
            sum(net.parameter[name].num_elements for name in held)
            + in_flight[stage] * sum(cost.saved_bytes for cost in sums)
            + max((cost.workspace_bytes for cost in sums), default=0)
        )
    sent = sum(edge.num_bytes * (1 + edge.has_gradient) for edge in placement.edges)
    return max(loads), sent, max(full), loads, full


def every_cut(net, num_stages):
    names = [each.name for each in placed_units(net)]
    for cuts in combinations(range(1, len(names)), num_stages - 1):
        yield {name: sum(at >= cut for cut in cuts) for at, name in enumerate(names)}


def without_ties(net):
    return all(1 == sum(name in each.parameters for each in net.nodes) for name in net.parameter)


@st.composite
def problems(draw):
    net = draw(graphs(max_nodes=11, min_units=3))
    num_stages = draw(st.integers(1, min(4, len(placed_units(net)))))
    flight = st.lists(st.integers(1, 3), min_size=num_stages, max_size=num_stages)
    return net, draw(costs_of(net)), num_stages, draw(flight)


@settings(max_examples=120, deadline=None)
@drawn(problems())
def test_the_largest_load_is_the_least_there_is(drawn):
    """Of equal ones it sends least, then holds least: what trying every cut finds as well.

    Where parameters are tied, units may have moved to their twins: then it is no worse.
    """
    net, prices, num_stages, flight = drawn
    best = min(by_hand(net, prices, cut, flight)[:3] for cut in every_cut(net, num_stages))
    found = partition(net, prices, num_stages=num_stages, in_flight=flight, state=STATE, link=LINK)
    *now, loads, full = by_hand(net, prices, found.stage_of, flight)

    assert best[0] >= now[0]
    assert not without_ties(net) or best == tuple(now)
    assert tuple(loads) == found.loads
    assert tuple(full) == found.peak_bytes


@settings(max_examples=120, deadline=None)
@drawn(problems(), st.integers(1, 90))
def test_within_a_limit_it_is_the_best_that_fits(drawn, limit):
    """Where nothing fits, the error names the least that would do."""
    net, prices, num_stages, flight = drawn
    scores = [by_hand(net, prices, cut, flight)[:3] for cut in every_cut(net, num_stages)]
    fitting = [score for score in scores if score[2] <= limit]
    options = {"in_flight": flight, "state": STATE, "link": LINK, "device_bytes": limit}
    if not fitting:
        least = min(score[2] for score in scores)
        with pytest.raises(DoesNotFitError) as caught:
            partition(net, prices, num_stages=num_stages, **options)
        assert least == caught.value.least_bytes
        return
    found = partition(net, prices, num_stages=num_stages, **options)
    now = by_hand(net, prices, found.stage_of, flight)[:3]

    assert limit >= now[2]
    assert min(fitting)[0] >= now[0]
    assert not without_ties(net) or min(fitting) == now


@settings(max_examples=80, deadline=None)
@drawn(problems(), st.sampled_from([0.2, 0.5, 0.8, 1.0]))
def test_a_mix_of_memory_and_time_is_least_too(drawn, weight):
    """Each counts as a fraction of the whole model's on one stage."""
    net, prices, num_stages, flight = drawn
    whole = dict.fromkeys((each.name for each in placed_units(net)), 0)
    *_, times, sizes = by_hand(net, prices, whole, [max(flight)])

    def mixed(stage_of):
        *_, loads, full = by_hand(net, prices, stage_of, flight)
        return max(
            weight * size / (sizes[0] or 1) + (1 - weight) * load / (times[0] or 1)
            for load, size in zip(loads, full, strict=True)
        )

    found = partition(
        net,
        prices,
        num_stages=num_stages,
        in_flight=flight,
        state=STATE,
        link=LINK,
        memory_weight=weight,
    )

    assert min(map(mixed, every_cut(net, num_stages))) >= mixed(found.stage_of) * (1 - 1e-6)


@settings(max_examples=25, deadline=None)
@drawn(problems())
def test_the_same_request_has_the_same_answer(drawn):
    net, prices, num_stages, flight = drawn
    first, second = (
        partition(net, prices, num_stages=num_stages, in_flight=flight) for _ in range(2)
    )

    assert first == second


def test_optimize_stands_for_a_weight_of_memory():
    """0.8 for memory and 0.2 for speed, unless a weight is given."""
    net, prices = chain(8, 1, 1, 1, 1)
    prices = costs({f"u{n}": s for n, s in enumerate([8.0, 1, 1, 1, 1])}, saved={"u4": 100})

    def of(**options):
        return partition(net, prices, num_stages=2, **options).stages

    assert of(memory_weight=0.8) == of(optimize="memory") != of(optimize="speed")
    assert of(memory_weight=0.2) == of(optimize="speed")
    assert of(memory_weight=0.0) == of(optimize="memory", memory_weight=0.0) == of()
    assert (("u0",), ("u1", "u2", "u3", "u4")) == of()
    assert (("u0", "u1", "u2", "u3"), ("u4",)) == of(optimize="memory")


def test_a_unit_that_is_replicated_stands_where_it_runs_first():
    net = graph(given(), unit("rope", "ids", own=False), unit("a", "ids"), unit("b", "a", "rope"))

    assert (("a",), ("rope", "b")) == partition(net, costs(), num_stages=2).stages


def test_a_unit_moves_to_its_twin_where_that_is_free():
    """T5's decoder embeds ids, which every stage has: it can run where the encoder's does.

    Runs of neighbours would be of 6, 6 and 7 seconds.
    """
    net = graph(
        given(),
        given("decoder_ids"),
        unit("encoder.embed", "ids", parameters=["shared"]),
        unit("encoder.0", "encoder.embed"),
        unit("encoder.1", "encoder.0"),
        unit("decoder.embed", "decoder_ids", parameters=["shared"]),
        unit("decoder.0", "decoder.embed", "encoder.1"),
    )
    names = ["encoder.embed", "encoder.0", "encoder.1", "decoder.embed", "decoder.0"]
    prices = costs(zip(names, [1.0, 5.0, 5.0, 1.0, 7.0], strict=True))
    found = partition(net, prices, num_stages=3)

    assert (7.0, 5.0, 7.0) == found.loads
    assert ("encoder.embed", "encoder.0", "decoder.embed") == found.stages[0]
    assert () == found.placement.ties
    moved = "decoder.embed was moved from stage 1 to stage 0, which holds the same parameter shared"
    assert Note("moved_unit", moved, "decoder.embed") == found.notes[-1]


def test_a_unit_stays_where_moving_would_slow_a_stage_or_send_a_value_back():
    net = graph(
        given(),
        given("decoder_ids"),
        unit("encoder.embed", "ids", parameters=["shared"]),
        unit("encoder.0", "encoder.embed"),
        unit("decoder.embed", "decoder_ids", parameters=["shared"]),
        unit("decoder.0", "decoder.embed", "encoder.0"),
        unit("head", "decoder.0", parameters=["shared"]),
    )
    prices = costs(dict.fromkeys(net.node, 5.0))
    found = partition(net, prices, num_stages=5)

    assert tuple((each.name,) for each in net.units) == found.stages
    assert (Tie(parameter="shared", stages=(0, 2, 4)),) == found.placement.ties


def test_the_unit_that_caps_the_gain_is_named():
    """A head of 40 % of the time: no more than 2.5 times as fast, which 3 stages are."""
    net, prices = chain(*[6] * 10, 40)
    found = partition(net, prices, num_stages=6)

    assert "u10" == found.bottleneck.unit
    assert 0.4 == found.bottleneck.share
    assert 3 == found.bottleneck.useful_stages
    assert found.notes[0].text.startswith(
        "u10 takes 40% of the time, so no pipeline is more than 2.5 times as fast as one rank, "
        "and 6 ranks are no faster than 3. Use 3 ranks, or divide it into smaller modules, or"
    )
    assert None is partition(net, prices, num_stages=2).bottleneck


def test_hand_made_stages_have_the_same_facts():
    net, prices = chain(1, 2, 3, 4)
    found = partition(net, prices, num_stages=2, link=LINK)

    assert found == assigned(net, prices, found.stage_of, num_stages=2, link=LINK)


def test_a_mask_counts_on_every_stage_that_computes_it():
    net = graph(given(), glue("mask", "ids"), unit("a", "ids", "mask"), unit("b", "a", "mask"))
    found = partition(net, costs({"mask": 2.0, "a": 1.0, "b": 1.0}), num_stages=2)

    assert (3.0, 3.0) == found.loads


def test_large_models_take_milliseconds():
    """200 units on 16 stages; of its own time, the best of three."""
    net, prices = chain(*[10 + number % 7 for number in range(200)])
    runs = []
    for _ in range(3):
        start = time.process_time()
        partition(net, prices, num_stages=16)
        runs.append(time.process_time() - start)

    assert 0.2 > min(runs)
