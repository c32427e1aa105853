# SPDX-License-Identifier: Apache-2.0
"""Report of a search: one line for each family, with a rule for the winner."""

from dataclasses import replace

import pytest
from layout_cases import llama_7b, p4d
from split_graphs import given, graph, unit

from smdist.modelparallel.core.cost import Costs, NodeCost
from smdist.modelparallel.core.layout import Layout, TrainingNeeds, find_layout
from smdist.modelparallel.core.layout.explain_layout import Rule, explain, reasons, rule_of
from smdist.modelparallel.core.layout.from_graph import (
    MicrobatchCosts,
    checkpointed,
    layers_between,
    layers_of,
)
from smdist.modelparallel.core.layout.layer_costs import layer_cost


@pytest.fixture(scope="module")
def search():
    return find_layout(llama_7b(), p4d(2), TrainingNeeds(global_batch=256, reduction="microbatch"))


def test_shards_inside_a_host_win_by_their_rule(search):
    """The rule is data, whatever its sentence says."""
    assert Rule.SHARDS_IN_HOST is rule_of(search)


def test_each_losing_family_has_one_reason(search):
    """Slower families have a factor and a part of the step, the others a need of memory."""
    found = list(reasons(search))
    slower = [each for each in found if each.factor is not None]

    assert len(found) == len(search.families) - 1 + len(search.misfits)
    assert all(each.factor >= 1 and each.kind != "memory" for each in slower)
    assert "replicas" in {each.family for each in found if each.kind == "memory"}


def test_a_heading_without_lines_is_left_out(search):
    """If the user has fixed the degrees, there is one family alone."""
    alone = replace(search, families=search.families[:1], misfits=())

    assert "Other families" in explain(search, p4d(2))
    assert "Other families" not in explain(alone, p4d(2))


def test_no_line_is_longer_than_100_characters(search):
    """The report fits a terminal, as that of the plan."""
    assert max(map(len, explain(search, p4d(2)).splitlines())) <= 100


def test_options_of_a_layout_are_those_of_model_parallel():
    """Only a hybrid layout names its shard degree, and only a pipeline its schedule."""
    hybrid = Layout(data=16, sharding="full", shard_degree=8, num_microbatches=4)
    expected = {
        "pipeline_parallel_degree": 1,
        "microbatches": 4,
        "sharding": "full",
        "shard_degree": 8,
    }

    assert expected == hybrid.options()


def costs_of(samples):
    """Costs of two units: 1 ms of each microbatch, and 2 ms of each sample."""
    seconds = 1e-3 + samples * 2e-3
    cost = NodeCost(forward_seconds=seconds, weight_gradient_seconds=2 * seconds, saved_bytes=10)
    costs = Costs(nodes={"a": cost, "b": cost}, source="measured", device="cpu")
    model = graph(given(), unit("a", "ids"), unit("b", "a"))
    return MicrobatchCosts(graph=model, costs=costs, samples=samples)


def test_seconds_of_a_captured_model_are_a_line_through_two_sizes():
    """What does not grow with the samples is fixed for each microbatch."""
    layers = layers_between(costs_of(1), costs_of(8), p4d(1)).layers

    assert [layer.name for layer in layers] == ["a", "b"]
    assert layers[0].fixed_forward_seconds == pytest.approx(1e-3)
    assert layers[0].forward_seconds == pytest.approx(2e-3)
    assert layers[1].backward_seconds == pytest.approx(4e-3)


def of_bytes(samples, nbytes):
    """Costs of a unit with a parameter of 1000 elements, which keeps and needs so many bytes."""
    cost = NodeCost(saved_bytes=nbytes, workspace_bytes=nbytes)
    costs = Costs(nodes={"a": cost}, source="measured", device="cpu")
    model = graph(given(), unit("a", "ids"), sizes={"a.weight": 1000})
    return MicrobatchCosts(graph=model, costs=costs, samples=samples)


@pytest.mark.parametrize(
    ("one", "eight", "fixed", "slope"),
    [(5000, 5700, 4900, 100), (100, 800, 0, 100), (5000, 4000, 5000, 0), (100, 8000, 0, 1000)],
    ids=["both", "proportional", "less", "faster"],
)
def test_bytes_of_a_captured_model_are_a_line_through_two_sizes(one, eight, fixed, slope):
    """The gradient of a weight, or a mask, is there once, whatever the number of samples."""
    layer = layers_between(of_bytes(1, one), of_bytes(8, eight), p4d(1)).layers[0]
    cost = layer_cost(p4d(1), layer, 1, 8, "none", offload=False)

    assert (fixed, slope) == (layer.fixed_workspace_bytes, layer.workspace_bytes)
    assert (fixed, slope) == (layer.fixed_saved_bytes, layer.saved_bytes)
    assert fixed + 8 * slope == cost.workspace_bytes == cost.saved_bytes


def test_new_gradients_of_one_capture_are_fixed():
    """From one size, temporary memory up to the bytes of the parameters is not multiplied."""
    case = of_bytes(2, 5000)
    layer = layers_of(case.graph, case.costs, p4d(1), samples=2).layers[0]

    assert (4000, 500) == (layer.fixed_workspace_bytes, layer.workspace_bytes)
    assert (0, 2500) == (layer.fixed_saved_bytes, layer.saved_bytes)


def test_layers_that_keep_little_are_not_checkpointed():
    """Units that keep less than twice their output stay as they are."""
    case = costs_of(1)

    assert checkpointed(case.graph, case.costs, "full") == ()


def test_seconds_of_one_capture_are_proportional_to_the_samples():
    """Without a second size, nothing is known to be fixed."""
    case = costs_of(4)
    layer = layers_of(case.graph, case.costs, p4d(1), samples=4).layers[0]

    assert layer.fixed_forward_seconds == 0
    assert layer.forward_seconds == pytest.approx(9e-3 / 4)
