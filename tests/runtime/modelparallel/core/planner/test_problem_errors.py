# SPDX-License-Identifier: Apache-2.0
"""What cannot be planned is told in one error, with what would do."""

import re

import pytest
from plan_problems import MIB, Model, problem

from smdist.modelparallel.core.plan_errors import PlanError
from smdist.modelparallel.core.planner import find_plan


def told(**options):
    with pytest.raises(PlanError) as error:
        find_plan(problem(**options))
    return [str(each) for each in getattr(error.value, "faults", (error.value,))]


def test_bad_values_come_at_once():
    assert [
        "microbatches is -1: it counts something that is there. "
        "Pass an integer of at least 1, or leave it out.",
        "schedule is '1f1': there is none of this name. Did you mean '1f1b'?",
        "optimize is 'sped': it is one of two words. Did you mean 'speed'?",
        "memory_weight is 2: it is a share, from 0 to 1. Pass such a number, or leave it out.",
    ] == told(microbatches=-1, schedule="1f1", optimize="sped", memory_weight=2)


def test_options_that_contradict_each_other_come_at_once():
    assert [
        "pipeline_parallel_degree 3: there are 4 ranks, and pipelines take all of them. "
        "Use degrees whose product is 4: of 1, 2, 4.",
        "microbatches is 3: a batch of 8 cannot be cut into so many equal parts. "
        "Use one of 1, 2, 4, 8.",
        "active_microbatches is 4: the schedule '1f1b' knows itself how many are under way. "
        "Leave it out, or use the schedule 'interleaved'.",
        "virtual_stages is 2: the schedule '1f1b' takes 1 on each rank. "
        "Leave it out, or use another schedule.",
    ] == told(
        pipeline_parallel_degree=3,
        microbatches=3,
        schedule="1f1b",
        active_microbatches=4,
        virtual_stages=2,
    )


def test_degrees_are_held_against_the_ranks():
    (fault,) = told(pipeline_parallel_degree=2, data_parallel_degree=4)

    assert "pipeline_parallel_degree 2 and data_parallel_degree 4: there are 4 ranks" in fault


def test_limit_that_nothing_fits_in_names_the_nearest():
    """Each length of a pipeline with what its fullest rank would hold, and what would do."""
    (fault,) = told(model=Model(saved=1024), device_memory=40 * MIB)

    assert fault == (
        "device_memory is 40.0 MiB: no plan fits in that. Nearest are 1 pipeline of 4 ranks, 1f1b, "
        "8 microbatches: it needs 48.0 MiB on rank 2 (stage 2: h.3 to h.5), of which 48.0 MiB for "
        "weights, gradients and optimizer state; 2 pipelines of 2 ranks, 1f1b, 8 microbatches: it "
        "needs 80.0 MiB on rank 0 (stage 0: wte to h.3), of which 80.0 MiB for weights, gradients "
        "and optimizer state; 4 pipelines of 1 rank, 1f1b, 8 microbatches: it needs 160 MiB on "
        "rank 0 (stage 0: wte to lm_head), of which 160 MiB for weights, gradients and optimizer "
        "state. The least found that would do is 48.0 MiB (50,339,840 bytes). Or use more ranks "
        "in a pipeline, smaller microbatches, activation checkpointing in the model, fewer samples "
        "a replica, or a leaner optimizer state."
    )


def test_limit_that_is_named_as_smallest_would_do():
    """What the error says is enough, and a little less is not."""
    model = Model(saved=1024)
    (fault,) = told(model=model, device_memory=40 * MIB, schedule="1f1b")
    enough = int(re.search(r"would do is .* \(([0-9,]+) bytes\)", fault)[1].replace(",", ""))

    assert find_plan(problem(model, device_memory=enough, schedule="1f1b"))
    assert told(model=model, device_memory=enough - 1, schedule="1f1b")


def test_more_stages_than_units_are_told():
    (fault,) = told(model=Model((1e-3,) * 2), ranks=8, pipeline_parallel_degree=8)

    assert fault == (
        "pipeline_parallel_degree 8 and the schedule 'auto': that takes at least 8 stages, and GPT "
        "has 4 units. Ask for at most 4 stages, or open modules into finer units."
    )


def test_options_that_would_be_ignored_are_refused():
    """Either marks place units, or the planner does."""
    assert ["marks is given", "default_partition is given"] == [
        fault.partition(" and ")[0] for fault in told(marks={"h.0": 1}, default_partition=0)
    ]
    assert ["optimize is given and auto_partition is False: marks place all units. "] == [
        fault.partition("Leave")[0] for fault in told(auto_partition=False, optimize="speed")
    ]


def test_marks_for_another_number_of_stages_are_told():
    options = {"auto_partition": False, "default_partition": 0, "marks": {"lm_head": 2}}
    (fault,) = told(pipeline_parallel_degree=2, **options)

    assert "marks are for 3 stages: no pipeline has so many with schedule 'auto', 4 ranks" in fault


def test_marks_that_make_no_pipeline_are_told():
    """A value would go back; a mark fits nothing; a unit has no place."""
    model = Model((1e-3,) * 2)
    back = told(
        model=model,
        ranks=2,
        auto_partition=False,
        default_partition=0,
        marks={"h.0": 1},
    )
    none = told(model=model, ranks=2, auto_partition=False, marks={"lm_head": 1, "wte": 0})

    assert "h.1" in back[0]
    assert none[0].startswith("auto_partition is False without a default_partition: ")


def test_stages_by_hand_are_held_against_memory():
    """What people placed is not moved elsewhere to fit."""
    options = {"auto_partition": False, "default_partition": 0, "marks": {"lm_head": 1}}
    (fault,) = told(model=Model(saved=1024), ranks=2, device_memory=100 * MIB, **options)

    assert "it needs 144 MiB on rank 0 (stage 0: wte to h.7)" in fault
