# SPDX-License-Identifier: Apache-2.0
"""Stages from marks on modules."""

from dataclasses import replace

import pytest
from split_graphs import given, graph, unit

from sagemaker_dist.errors import OptionError
from smdist.modelparallel.core.partition.manual import note_on_marks, stages_of_marks
from smdist.modelparallel.core.placement import place


def net():
    second_call = replace(unit("head@2", "head", parameters=["head.weight"]), module="head")
    return graph(
        given(),
        unit("rope", "ids", own=False),
        unit("embed", "ids"),
        unit("h.0.attn", "embed", "rope"),
        unit("h.0.mlp", "h.0.attn"),
        unit("h.1", "h.0.mlp"),
        unit("head", "h.1"),
        second_call,
    )


def test_the_nearest_mark_counts():
    """The unit's own, or that of the nearest module around it, or the default."""
    marks = {"h": 1, "h.0": 0, "h.0.mlp": 1, "head": 2}

    assert {
        "embed": 0,
        "h.0.attn": 0,
        "h.0.mlp": 1,
        "h.1": 1,
        "head": 2,
        "head@2": 2,
    } == stages_of_marks(net(), marks, num_stages=3, default_partition=0)


def test_a_mark_of_the_model_stands_before_the_default():
    stages = stages_of_marks(net(), {"": 1, "embed": 0}, num_stages=2, default_partition=0)

    assert [0, 1, 1, 1, 1, 1] == list(stages.values())


def test_names_that_begin_alike_are_not_within_each_other():
    both = graph(given(), unit("layer1", "ids"), unit("layer10", "layer1"))
    stages = stages_of_marks(both, {"layer1": 1}, num_stages=2, default_partition=0)

    assert {"layer1": 1, "layer10": 0} == stages


def test_placing_refuses_marks_that_send_values_back():
    both = graph(given(), unit("a", "ids"), unit("b", "a"))
    stages = stages_of_marks(both, {"a": 1}, num_stages=2, default_partition=0)
    with pytest.raises(OptionError) as error:
        place(both, stages)

    assert ("stage_of", "b") == error.value.about


def test_marks_may_stand_where_no_unit_is():
    """Modules that the forward pass does not call, or that run wherever they are read."""
    marks = {"unused": 1, "rope": 1, "head": 1, "head.norm": 1}

    assert 1 == stages_of_marks(net(), marks, num_stages=2, default_partition=0)["head"]


def fault(marks, **options):
    with pytest.raises(OptionError) as error:
        stages_of_marks(net(), marks, **options)
    return error.value


def test_a_default_is_required():
    found = fault({"head": 1}, num_stages=2, default_partition=None)

    assert (("auto_partition",), "missing") == (found.about, found.kind)
    assert (
        "auto_partition is False without a default_partition: smp.partition() sets no stage for"
        " these modules: embed, h.0.attn, h.0.mlp, h.1. Set their stages with smp.partition(), or"
        " pass a stage from 0 to 1 as default_partition."
    ) == str(found)


def test_all_numbers_are_checked_at_once():
    found = fault({"head": 2, "": -1, "h": True}, num_stages=2, default_partition=2)

    assert [
        ("default_partition",),
        ("marks", "head"),
        ("marks", ""),
        ("marks", "h"),
    ] == [each.about for each in found.faults]


def test_every_stage_is_used_and_no_unit_is_cut():
    found = fault({"head": 2, "h.1.mlp": 3}, num_stages=4, default_partition=0)

    assert [
        (("marks", "h.1.mlp"), "conflict"),
        (("stages", 1), "empty_stage"),
        (("stages", 3), "empty_stage"),
    ] == [(each.about, each.kind) for each in found.faults]


def test_marks_without_effect_are_mentioned():
    assert None is note_on_marks({})
    assert "ignored_marks" == note_on_marks({"h": 1, "head": 2}).kind
