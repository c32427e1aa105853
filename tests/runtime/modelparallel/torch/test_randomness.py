# SPDX-License-Identifier: Apache-2.0
"""Random numbers belong to functions, steps and microbatches, not to the order of execution."""

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from smdist.modelparallel.core.placement import place
from smdist.modelparallel.torch.capture import capture
from smdist.modelparallel.torch.materialization.stage_module import StageModule
from smdist.modelparallel.torch.program.program import RngCall
from smdist.modelparallel.torch.randomness import RngStream, drawing

BATCH = torch.ones(3, 4)


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.drop = nn.Linear(4, 4), nn.Dropout()

    def forward(self, x):
        return self.drop(nn.functional.dropout(self.a(x))) + torch.rand(4)


class Block(nn.Module):
    """Draws in a module of its own, in its forward function, and in a checkpoint."""

    def __init__(self, reentrant):
        super().__init__()
        self.linear, self.drop, self.reentrant = nn.Linear(4, 4), nn.Dropout(), reentrant

    def forward(self, x):
        x = nn.functional.dropout(self.linear(x), 0.3, self.training)
        if self.reentrant is None:
            return self.drop(x)
        return checkpoint(self.drop, x, use_reentrant=self.reentrant)


class Blocks(nn.Module):
    def __init__(self, reentrant=None):
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second = Block(reentrant), Block(reentrant)
        self.layer = nn.TransformerEncoderLayer(4, 2, 8, dropout=0.5, batch_first=True)

    def forward(self, x):
        return self.layer(self.second(self.first(x)) + torch.rand(4))


def test_the_same_draws_give_the_same_numbers():
    model = Model()
    program = capture(model, BATCH).program

    def run(**draws):
        with drawing(program, RngStream(**draws)):
            return model(BATCH)

    assert torch.equal(run(step=3), run(step=3))
    assert not torch.equal(run(step=3), run(step=4))
    assert not torch.equal(run(microbatch=0), run(microbatch=1))
    assert not torch.equal(run(seed=0), run(seed=1))


def test_functions_that_draw_are_numbered_through_the_whole_forward_pass():
    calls = [call for call in capture(Model(), BATCH).program.calls if call.is_random]

    assert [0, 1, 2] == [call.rng.first for call in calls]
    assert [1, 1, 1] == [call.rng.count for call in calls]


@pytest.mark.parametrize("reentrant", [None, False])
def test_numbers_are_the_same_whatever_is_a_unit(reentrant):
    """Modules that are closed, and opened ones whose parts run on other stages."""
    closed = capture(Blocks(reentrant), BATCH, closed=("first", "second"))
    opened = capture(Blocks(reentrant), BATCH, opened=("layer",))

    assert len(closed.program.calls) < len(opened.program.calls)
    assert closed.program.rng.count == opened.program.rng.count
    for left, right in zip(_run(closed), _run(opened), strict=True):
        assert torch.equal(left, right)


@pytest.mark.parametrize("reentrant", [None, False, True])
def test_a_split_model_draws_what_the_whole_one_draws(reentrant):
    """Also where a checkpoint computes again."""
    captured = capture(Blocks(reentrant), BATCH.clone().requires_grad_(), closed=("first",))
    model, batch = captured.model, BATCH.clone().requires_grad_()
    with drawing(captured.program, RngStream(step=2)):
        output = model(batch)
        output.sum().backward()

    for left, right in zip([output, *_gradients(model)], _run(captured), strict=True):
        assert torch.equal(left, right)


def test_functions_beyond_those_that_were_captured_have_numbers_of_their_own():
    """A unit may call as many as it likes; none of them draws what another call does."""
    rng = RngCall(first=4, count=2, functions=frozenset())

    assert ["4", "5", "6+0", "6+1"] == [rng.name(index) for index in range(4)]


def test_numbers_of_everybody_else_stay_as_they_were():
    model = Model()
    call = next(call for call in capture(model, BATCH).program.calls if call.is_random)
    state = torch.get_rng_state()

    with RngStream().around(call):
        torch.rand(10)

    assert torch.equal(state, torch.get_rng_state())


def test_checkpoints_of_everybody_else_stay_as_they_are():
    def run(reentrant):
        torch.manual_seed(1)
        block = Block(reentrant)
        block(BATCH).sum().backward()
        return block.linear.weight.grad

    assert torch.equal(run(None), run(False))


def test_seeds_fit_every_generator():
    assert 0 <= RngStream(seed=2**40, step=10**9).seed_of("x" * 1000) < 2**63


def _run(captured):
    """Output and gradients of all of it as one stage."""
    captured.model.zero_grad()
    names = [unit.name for unit in captured.graph.units]
    stage = StageModule(captured, place(captured.graph, dict.fromkeys(names, 0)), 0)
    batch = BATCH.clone().requires_grad_(captured.example.requires_grad)
    output = stage.output(stage({}, ((batch,), {}), RngStream(step=2).around))
    output.sum().backward()
    return [output, *_gradients(captured.model)]


def _gradients(model):
    return [parameter.grad.clone() for parameter in model.parameters()]
