# SPDX-License-Identifier: Apache-2.0
"""Verification runs microbatches as a pipeline does, and refuses what it cannot do."""

import math
import sys
from dataclasses import dataclass

import pytest
import torch
from torch import nn

from sagemaker_dist.errors import OptionError
from smdist.modelparallel.torch.materialization.stage_module import StageModule
from smdist.modelparallel.torch.planning.make_plan import plan as find
from smdist.modelparallel.torch.verification.verify import VerifyError, verify

BATCH = torch.linspace(-1, 1, 32).view(8, 4).sin()


def layers(*more):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4), *more)


def normed():
    return layers(nn.BatchNorm1d(4), nn.Linear(4, 4))


def test_microbatches_of_a_split_model_are_those_of_the_model():
    found = verify(normed(), BATCH, microbatches=4)

    assert 4 == found.microbatches
    assert 1e-6 >= found.relative_error
    assert 0.0 == found.output_error == found.buffer_error


def test_each_microbatch_draws_numbers_of_its_own():
    found = verify(layers(nn.Dropout(0.5)), BATCH, microbatches=2, loss=torch.sum)

    assert 1e-6 >= found.relative_error


def test_a_stage_that_is_wrong_from_the_second_microbatch_on_is_found(monkeypatch):
    class Tired(StageModule):
        def forward(self, received, arguments, around):
            values = super().forward(received, arguments, around)
            self.runs = getattr(self, "runs", 0) + 1
            return {name: value * (1 + (self.runs > 1)) for name, value in values.items()}

    monkeypatch.setattr(sys.modules[verify.__module__], "StageModule", Tired)

    assert 0.0 == verify(layers(), BATCH).output_error
    with pytest.raises(VerifyError) as caught:
        verify(layers(), BATCH, microbatches=2)

    assert ("output", ("output 0 of microbatch 1",)) == (caught.value.kind, caught.value.about)


@pytest.mark.parametrize("loss", [None, torch.mean])
def test_a_mean_over_samples_is_the_same_in_microbatches(loss):
    found = verify(layers(), BATCH, microbatches=4, loss=loss)

    assert 1e-6 >= found.microbatch_error
    assert "in 4 microbatches gradients differ from those of the whole batch by" in str(found)
    assert "BatchNorm" not in str(found)


@pytest.mark.parametrize(
    ("model", "loss"), [(normed, torch.mean), (normed, None), (layers, torch.sum)]
)
def test_what_is_no_mean_over_samples_is_told_and_not_judged(model, loss):
    def mean(output):
        return output.square().mean() if loss is torch.mean else output.sum()

    found = verify(model(), BATCH, microbatches=4, loss=loss and mean)

    assert 0.05 < found.microbatch_error
    assert "(BatchNorm, dropout, losses that are no mean over samples)" in str(found)


def test_one_microbatch_is_the_whole_batch():
    found = verify(normed(), BATCH)

    assert (1, None) == (found.microbatches, found.microbatch_error)
    assert "microbatch" not in str(found)


def test_a_plan_says_how_many_microbatches_there_are():
    plan = find(layers(), BATCH, 2, pipeline_parallel_degree=2, microbatches=4, costs="estimate")

    assert 4 == verify(layers(), BATCH, plan=plan).microbatches
    assert 2 == verify(layers(), BATCH, plan=plan, microbatches=2).microbatches


def test_inputs_that_want_gradients_are_compared_part_by_part():
    found = verify(layers(), BATCH.clone().requires_grad_(), microbatches=2)

    assert 1e-6 >= found.relative_error


@pytest.mark.parametrize(
    "options",
    [
        {"microbatches": 3},
        {"microbatches": 0},
        {"microbatches": True},
        {"stages": 30},
        {"stages": 0},
        {"loss": lambda output: output},
        {"loss": lambda output: output.detach().sum()},
        {"loss": lambda output: 1.0},
        {"tolerance": 0},
        {"tolerance": -1.0},
        {"tolerance": math.nan},
    ],
)
def test_options_that_cannot_be_verified_are_refused_by_name(options):
    with pytest.raises(OptionError) as caught:
        verify(layers(), BATCH, **options)

    assert tuple(options) == caught.value.about


def test_stages_and_a_plan_are_one_too_many():
    @dataclass
    class Plan:
        stages: tuple = (("0",), ("1", "2"))
        opened: tuple = ()

    with pytest.raises(OptionError) as caught:
        verify(layers(), BATCH, plan=Plan(), stages=3)

    assert ("stages",) == caught.value.about


def test_a_plan_for_another_model_is_refused_as_such():
    plan = find(layers(), BATCH, 2, pipeline_parallel_degree=2, costs="estimate")
    other = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 4))

    with pytest.raises(OptionError) as caught:
        verify(other, BATCH, plan=plan)

    assert (("fingerprint",), "difference") == (caught.value.about, caught.value.kind)
