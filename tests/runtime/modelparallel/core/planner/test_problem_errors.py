# SPDX-License-Identifier: Apache-2.0
"""What cannot be planned is told in one error, with what would do."""

import pytest
from plan_problems import MIB, Model, problem

from sagemaker_dist.errors import parts_of
from smdist.modelparallel.core.plan_errors import PlanError
from smdist.modelparallel.core.planner import find_plan


def faults(**options):
    with pytest.raises(PlanError) as error:
        find_plan(problem(**options))
    return parts_of(error.value)


def fields(**options):
    return [(fault.about, fault.kind) for fault in faults(**options)]


def abouts(**options):
    return [fault.about for fault in faults(**options)]


def test_bad_values_come_at_once():
    found = faults(microbatches=-1, schedule="1f1", optimize="sped", memory_weight=2)

    assert [
        (("microbatches",), "option"),
        (("schedule",), "unknown"),
        (("optimize",), "unknown"),
        (("memory_weight",), "option"),
    ] == [(fault.about, fault.kind) for fault in found]
    assert [
        "microbatches is -1: it is a number that is at least 1. "
        "Pass an integer of at least 1, or leave it out.",
        "schedule is '1f1': no schedule has this name. Did you mean '1f1b'?",
        "optimize is 'sped': it must be 'speed' or 'memory'. Did you mean 'speed'?",
        "memory_weight is 2: it is a fraction. Pass a number from 0 to 1, or leave it out.",
    ] == list(map(str, found))


def test_options_that_contradict_each_other_come_at_once():
    assert [
        (("pipeline_parallel_degree",), "indivisible"),
        (("microbatches",), "indivisible"),
        (("virtual_stages",), "conflict"),
        (("active_microbatches",), "conflict"),
    ] == fields(
        pipeline_parallel_degree=3,
        microbatches=3,
        schedule="1f1b",
        active_microbatches=4,
        virtual_stages=2,
    )


def test_degrees_are_held_against_the_ranks():
    assert [("pipeline_parallel_degree",)] == abouts(
        pipeline_parallel_degree=2, data_parallel_degree=4
    )
    assert [("data_parallel_degree",)] == abouts(data_parallel_degree=3)


def test_limit_that_nothing_fits_in_names_the_nearest():
    """Each length of a pipeline with what its fullest rank would hold, and what would do."""
    (fault,) = faults(model=Model(saved=1024), device_memory=40 * MIB)

    assert str(fault) == (
        "device_memory is 40.0 MiB: no plan fits in this memory. The plans that need the least "
        "memory are: 1 pipeline of 4 ranks, 1f1b, "
        "8 microbatches: it needs 48.0 MiB on rank 2 (stage 2: h.3 to h.5), of which 48.0 MiB for "
        "weights, gradients and optimizer state; 2 pipelines of 2 ranks, 1f1b, 8 microbatches: it "
        "needs 80.0 MiB on rank 0 (stage 0: wte to h.3), of which 80.0 MiB for weights, gradients "
        "and optimizer state; 4 pipelines of 1 rank, 1f1b, 8 microbatches: it needs 160 MiB on "
        "rank 0 (stage 0: wte to lm_head), of which 160 MiB for weights, gradients and optimizer "
        "state. Use ranks with at least 48.0 MiB (50,339,840 bytes), more ranks in a pipeline, "
        "smaller microbatches, activation checkpointing in the model, a smaller batch, or an "
        "optimizer with less state."
    )


def test_limit_that_is_named_as_smallest_would_do():
    """What the error says is enough, and a little less is not."""
    model = Model(saved=1024)
    (fault,) = faults(model=model, device_memory=40 * MIB, schedule="1f1b")
    enough = fault.least_bytes

    assert find_plan(problem(model, device_memory=enough, schedule="1f1b"))
    assert [("device_memory",)] == abouts(model=model, device_memory=enough - 1, schedule="1f1b")


def test_more_stages_than_units_are_told():
    assert [(("pipeline_parallel_degree",), "too_many_stages")] == fields(
        model=Model((1e-3,) * 2), ranks=8, pipeline_parallel_degree=8
    )


def test_options_that_would_be_ignored_are_refused():
    """Either marks place units, or the planner does."""
    assert [(("marks",), "conflict"), (("default_partition",), "conflict")] == fields(
        marks={"h.0": 1}, default_partition=0
    )
    assert [(("optimize",), "conflict")] == fields(auto_partition=False, optimize="speed")


def test_marks_for_another_number_of_stages_are_told():
    options = {"auto_partition": False, "default_partition": 0, "marks": {"lm_head": 2}}

    assert [(("marks",), "conflict")] == fields(pipeline_parallel_degree=2, **options)


def test_marks_that_make_no_pipeline_are_told():
    """A value would go back; a mark fits nothing; a unit has no place."""
    model = Model((1e-3,) * 2)
    back = fields(
        model=model,
        ranks=2,
        auto_partition=False,
        default_partition=0,
        marks={"h.0": 1},
    )
    none = fields(model=model, ranks=2, auto_partition=False, marks={"lm_head": 1, "wte": 0})

    assert (("stage_of", "h.1"), "stage_order") == back[0]
    assert [(("auto_partition",), "missing")] == none


def test_stages_by_hand_are_held_against_memory():
    """What people placed is not moved elsewhere to fit."""
    options = {"auto_partition": False, "default_partition": 0, "marks": {"lm_head": 1}}
    (fault,) = faults(model=Model(saved=1024), ranks=2, device_memory=100 * MIB, **options)

    assert (("device_memory",), "memory") == (fault.about, fault.kind)
    assert 144 == fault.least_bytes // MIB
