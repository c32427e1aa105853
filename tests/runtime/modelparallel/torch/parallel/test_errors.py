# SPDX-License-Identifier: Apache-2.0
"""What goes wrong is one clear error on every rank, at once; what can go on goes on."""

import time

import pytest
import torch
from smp_nets import batch, loss_of, net, outcome, start, train_step
from torch import nn

import smdist.modelparallel.torch as smp


def requests(rank, size):
    """Each is refused before anything is sent, and the next step runs."""
    start(size)
    model = smp.DistributedModel(net())
    x, y = batch()

    @smp.step
    def never(model, x):
        return x

    @smp.step
    def breaks_on_one(model, x):
        if rank == size - 1:
            raise RuntimeError("no such file")
        return model(x)

    @smp.step
    def nested(model, x, y):
        return train_step(model, x, y)

    loss = train_step(model, x, y).reduce_mean().item()
    found = [
        outcome(train_step, model, x[:6], y[:6]),
        outcome(train_step, model, x[: 8 - 4 * rank], y[: 8 - 4 * rank]),
        outcome(train_step, model, x[:4] + rank, y[:4]),
        outcome(never, model, x),
        outcome(breaks_on_one, model, x),
        outcome(nested, model, x, y),
        outcome(model, x),
        outcome(model.backward, x.sum()),
        outcome(smp.DistributedModel, net()),
        outcome(smp.set_activation_checkpointing, model.module.head),
    ]
    assert loss == train_step(model, x, y).reduce_mean().item()
    model.module.head = nn.Linear(8, 8)
    return [*found, outcome(train_step, model, x, y)]


WORDS = [
    ["'x' has 6 samples", "4 equal microbatches", "1, 2, 3, 6 microbatches"],
    ["rank 1", "other inputs than rank 0", "x torch.float32[8, 8]", "x torch.float32[4, 8]"],
    ["rank 1", "other data than rank 0", "they differ in 'x'", "rank=smp.dp_rank()"],
    ["never returned without calling the model"],
    ["no such file"],
    ["called inside another step"],
    ["Net is called outside of a step", "@smp.step"],
    ["model.backward() is called outside of a step"],
    ["there is a DistributedModel already"],
    ["in a model that is split into stages already"],
    ["Net changed after it was cut", "'head'"],
]


def test_wrong_requests_are_told_on_every_rank_and_the_next_step_runs(world):
    per_rank = world.run(requests, size=2)

    for words, told in zip(WORDS, zip(*per_rank, strict=True), strict=True):
        for kind, text in told:
            assert kind != "ok"
            assert all(word in text for word in words), text


def fails(rank, size, what):
    """In the last stage, or in the user's code behind the model."""
    start(size)
    model = smp.DistributedModel(net())
    x, y = batch()

    def bad_class(model, x, y):
        loss = loss_of(model, x, y)
        if what == "plain backward":
            loss.backward()
        elif what == "two calls":
            model(x)
        elif what == "no gradient":
            model.backward(loss.detach())
        elif what == "mean":
            model.backward(torch.stack([loss, loss]))
        raise ValueError("labels of no class")

    train_step(model, x, y)
    began = time.monotonic()
    kind, text = outcome(smp.step(bad_class), model, x, y)
    return kind, text, time.monotonic() - began


@pytest.mark.parametrize(
    ("what", "words"),
    [
        ("error", ["ValueError: labels of no class"]),
        ("plain backward", ["Call model.backward(loss)"]),
        ("two calls", ["the model is called twice"]),
        ("no gradient", ["requires no gradient"]),
        ("mean", ["shape (2,)", "mean or sum"]),
    ],
)
def test_what_fails_behind_the_model_ends_the_step_on_every_rank(world, what, words):
    per_rank = world.run(fails, what, size=2)

    for kind, text, seconds in per_rank:
        assert "StepError" == kind
        assert "rank 1" in text
        assert all(word in text for word in words), text
        assert seconds < 10


def impossible(rank, size):
    start(size, microbatches=3)
    return outcome(train_step, smp.DistributedModel(net()), *batch())


def test_a_plan_that_cannot_be_is_told_on_every_rank(world):
    for kind, text in world.run(impossible, size=2):
        assert "PlanError" == kind
        assert "microbatches is 3" in text
