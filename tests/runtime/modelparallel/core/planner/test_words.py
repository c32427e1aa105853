# SPDX-License-Identifier: Apache-2.0
"""What is said of candidates and bottlenecks can be read by people who know no papers."""

from dataclasses import replace

import pytest
from plan_problems import Model, problem

from smdist.modelparallel.core.partition.bottleneck import advice
from smdist.modelparallel.core.partition.result import Bottleneck
from smdist.modelparallel.core.plan.number_format import slower
from smdist.modelparallel.core.planner import find_plan
from smdist.modelparallel.core.planner.candidates import Candidate


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (
            {"pipeline": 4, "data": 1, "schedule": "1f1b", "num_microbatches": 8},
            "1 pipeline of 4 ranks, 1f1b, 8 microbatches",
        ),
        (
            {
                "pipeline": 2,
                "data": 2,
                "schedule": "interleaved_1f1b",
                "num_microbatches": 8,
                "virtual_stages": 4,
            },
            "2 pipelines of 2 ranks, interleaved_1f1b (4 stages on each rank), 8 microbatches",
        ),
        (
            {
                "pipeline": 1,
                "data": 2,
                "schedule": "interleaved",
                "num_microbatches": 1,
                "active_microbatches": 1,
            },
            "2 pipelines of 1 rank, interleaved (at most 1 microbatch in flight), 1 microbatch",
        ),
    ],
)
def test_candidate_is_told_in_words(options, told):
    """Without letters and crosses."""
    assert told == str(Candidate(**options))


@pytest.mark.parametrize(
    ("factor", "told"),
    [
        (1.0, "it is as fast"),
        (1.12, "it is 12.0 % slower per sample"),
        (3.363, "it takes 3.4 times as long per sample"),
    ],
)
def test_double_the_time_is_told_as_times(factor, told):
    """More than a hundred percent slower is hard to picture."""
    assert told == slower(factor)


@pytest.mark.parametrize(
    ("share", "useful", "told"),
    [
        (
            0.39,
            1,
            "l1 takes 39% of the time, so no pipeline is more than 2.6 times as fast as one rank; "
            "with its modules of today, 3 ranks are no faster than one. Use one rank, or divide it",
        ),
        (
            0.39,
            3,
            "l1 takes 39% of the time, so no pipeline is more than 2.6 times as fast as one rank. "
            "Divide it into smaller modules",
        ),
        (0.97, 3, "l1 takes 97% of the time, so no pipeline is noticeably faster than one rank."),
    ],
)
def test_advice_does_not_contradict_itself(share, useful, told):
    """What nothing can beat is one thing, what this cut comes to another."""
    note = advice(Bottleneck(unit="l1", share=share, useful_stages=useful), 3)

    assert note.text.startswith(told)


def test_measured_times_that_are_close_are_said_to_be_close():
    """Five percent is what one measurement differs from the next by; estimates do not vary."""
    plan = find_plan(problem(Model(), ranks=2, pipeline_parallel_degree=2))
    estimated = replace(plan, forecast=replace(plan.forecast, source="estimated"))
    alone = replace(plan, rejected=())

    said = "within 5 % of this one. Measured times differ"
    assert said in " ".join(plan.explain().split())
    assert said not in " ".join(estimated.explain().split())
    assert said not in " ".join(alone.explain().split())
