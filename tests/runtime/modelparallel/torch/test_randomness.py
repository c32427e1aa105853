# SPDX-License-Identifier: Apache-2.0
"""Random numbers belong to calls, steps and microbatches, not to the order of execution."""

import torch
from torch import nn

from smdist.modelparallel.torch.capture import capture
from smdist.modelparallel.torch.randomness import Draws, drawing

BATCH = torch.ones(3, 4)


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.drop = nn.Linear(4, 4), nn.Dropout()

    def forward(self, x):
        return self.drop(nn.functional.dropout(self.a(x))) + torch.rand(4)


def test_the_same_draws_give_the_same_numbers():
    model = Model()
    program = capture(model, BATCH).program

    def run(**draws):
        with drawing(program, model, Draws(**draws)):
            return model(BATCH)

    assert torch.equal(run(step=3), run(step=3))
    assert not torch.equal(run(step=3), run(step=4))
    assert not torch.equal(run(microbatch=0), run(microbatch=1))
    assert not torch.equal(run(seed=0), run(seed=1))


def test_two_calls_draw_different_numbers():
    model = Model()
    calls = [call for call in capture(model, BATCH).program.calls if call.is_random]
    seeds = {Draws().seed_of(call.name) for call in calls}

    assert 3 == len(calls)
    assert 3 == len(seeds)


def test_numbers_of_everybody_else_stay_as_they_were():
    model = Model()
    call = next(call for call in capture(model, BATCH).program.calls if call.is_random)
    state = torch.get_rng_state()

    with Draws().around(call):
        torch.rand(10)

    assert torch.equal(state, torch.get_rng_state())


def test_seeds_fit_every_generator():
    assert 0 <= Draws(seed=2**40, step=10**9).seed_of("x" * 1000) < 2**63
