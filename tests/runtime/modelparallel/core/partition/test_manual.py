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
    with pytest.raises(OptionError, match="'b' is on stage 0: it needs what 'a' computes"):
        place(both, stages)


def test_marks_may_stand_where_no_unit_is():
    """Modules that the forward pass does not call, or that run wherever they are read."""
    marks = {"unused": 1, "rope": 1, "head": 1, "head.norm": 1}

    assert 1 == stages_of_marks(net(), marks, num_stages=2, default_partition=0)["head"]


def fault(marks, **options):
    with pytest.raises(OptionError) as error:
        stages_of_marks(net(), marks, **options)
    return str(error.value)


def test_a_default_is_required():
    assert "auto_partition is False without a default_partition" in fault(
        {"head": 1}, num_stages=2, default_partition=None
    )


def test_all_numbers_are_checked_at_once():
    text = fault({"head": 2, "": -1, "h": True}, num_stages=2, default_partition=2)

    assert "4 faults" in text
    assert "default_partition is 2: the stages are 0 to 1" in text
    assert "'head' is marked for stage 2" in text
    assert "'the model' is marked for stage -1" in text
    assert "'h' is marked for stage True" in text


def test_every_stage_is_used_and_no_unit_is_cut():
    text = fault({"head": 2, "h.1.mlp": 3}, num_stages=4, default_partition=0)

    assert "3 faults" in text
    assert "'h.1.mlp' is marked for stage 3: it is inside of the unit 'h.1'" in text
    assert "stage 1 has no unit" in text
    assert "stage 3 has no unit" in text


def test_marks_without_effect_are_mentioned():
    assert None is note_on_marks({})
    assert "2 modules are marked for stages, such as 'h'" in note_on_marks({"h": 1, "head": 2}).text
