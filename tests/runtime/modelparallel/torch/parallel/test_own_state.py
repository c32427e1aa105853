# SPDX-License-Identifier: Apache-2.0
"""Units that keep numbers of their own, and what a step says of itself."""

import contextlib
import io
import re
import warnings

import pytest
import torch
from torch import nn

import smdist.modelparallel.torch as smp
from sagemaker_dist import ModelParallel
from smdist.dataparallel.torch import step_report
from smdist.modelparallel.torch import session


class Counting(nn.Module):
    """Knows how often it ran, and what came by on average."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(8, 8)
        self.calls = 0

    def forward(self, x):
        self.calls += 1
        self.mean = 0.9 * getattr(self, "mean", 0.0) + 0.1 * x.detach().mean().item()
        return self.layer(x)


@contextlib.contextmanager
def splitting(size, **options):
    torch.set_num_threads(1)
    smp.init(ModelParallel(pipeline_parallel_degree=min(size, 2), microbatches=2, **options))
    try:
        torch.manual_seed(0)
        yield smp.DistributedModel(nn.Sequential(nn.Linear(8, 8), Counting(), nn.Linear(8, 8)))
    finally:
        session.end()


def counted(rank, size):
    with splitting(size) as model:
        x = torch.ones(4, 8)
        for _ in range(4):
            model.train_step(x, torch.Tensor.mean)
        with torch.no_grad():
            model(x)
        split = model._state.split
        own = [each for each in model.modules() if isinstance(each, Counting)]
        return len(split.captures), [each.calls for each in own]


@pytest.mark.parametrize("size", [1, 2])
def test_a_unit_may_count_its_calls(world, size):
    """Each change of a counter was another call to the planner, and of one rank alone: an error."""
    found = world.run(counted, size=size)

    assert all(known == 2 for known, _ in found)  # with gradients and without
    assert [9] == [calls for _, counts in found for calls in counts]  # 4 x 2 microbatches, 1 whole


def settings_followed(rank, size):
    with splitting(size) as model:
        x = torch.ones(4, 8)
        model.train_step(x, torch.Tensor.mean)
        model.module[2].slope = 2
        before = len(model._state.split.captures)
        model.train_step(x, torch.Tensor.mean)
        return before, len(model._state.split.captures)


def test_a_setting_that_the_script_changes_is_followed(world):
    """Between two steps: the model is looked at again."""
    assert [(1, 2)] * 2 == world.run(settings_followed, size=2)


def evaluated_alone(rank, size):
    with splitting(size) as model:

        @smp.step
        def step(model, x):
            loss = model(x).mean()
            if torch.is_grad_enabled():
                model.backward(loss)
            return loss

        x = torch.ones(4, 8)
        step(model, x)
        try:
            with torch.set_grad_enabled(rank != 0):
                step(model, x)
        except smp.DisagreementError as error:
            return error.kind, error.rank


def test_a_rank_that_evaluates_alone_is_not_told_of_other_data(world):
    assert [("model", 1)] * 2 == world.run(evaluated_alone, size=2)


def without_backward(rank, size):
    with splitting(size) as model, warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")

        @smp.step
        def forgetful(model, x):
            return model(x).mean()

        forgetful(model, torch.ones(4, 8))
        model.eval()
        forgetful(model, torch.ones(4, 8))
        return [str(each.message) for each in caught if "backward" in str(each.message)]


def test_a_step_that_trains_nothing_is_told(world):
    """Once, by the rank that has the loss; evaluation is none."""
    first, last = world.run(without_backward, size=2)

    assert [] == first
    assert 1 == len(last)
    assert "forgetful trained nothing" in last[0]
    assert "model.backward(loss)" in last[0]


def lines(rank, size):
    said = io.StringIO()
    with splitting(size) as model, contextlib.redirect_stdout(said):
        for _ in range(3):
            model.train_step(torch.ones(4, 8), torch.Tensor.mean)
        step_report.report(loss=0.5)
        step_report.finish()
    return said.getvalue()


def test_rank_0_prints_steps_and_samples(world):
    """Two replicas of two stages, four samples each."""
    first, *others = world.run(lines, size=4)
    found = re.search(
        r"smdist: step=3 .*samples_per_second=([\d.]+) steps_per_second=([\d.]+)", first
    )

    assert "loss=0.5" in first
    assert 8 == pytest.approx(float(found[1]) / float(found[2]), rel=0.01)
    assert not any("smdist: step" in other for other in others)
