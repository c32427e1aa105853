# SPDX-License-Identifier: Apache-2.0
"""What goes wrong is one clear error on every rank, at once; what can go on goes on."""

import time

import pytest
import torch
from smp_nets import batch, failure, loss_of, net, start, train_step
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
        failure(train_step, model, x[:6], y[:6]),
        failure(train_step, model, x[: 8 - 4 * rank], y[: 8 - 4 * rank]),
        failure(train_step, model, x[:4] + rank, y[:4]),
        failure(never, model, x),
        failure(breaks_on_one, model, x),
        failure(nested, model, x, y),
        failure(model, x),
        failure(model.backward, x.sum()),
        failure(smp.DistributedModel, net()),
        failure(smp.set_activation_checkpointing, model.module.head),
    ]
    assert loss == train_step(model, x, y).reduce_mean().item()
    model.module.head = nn.Linear(8, 8)
    return [*found, failure(train_step, model, x, y)]


def fields(found):
    """Return type, about, kind and rank of a failure; about of each fault if it has several."""
    about = tuple(about for about, _ in found.faults) or found.about
    return found.type, about, found.kind, found.rank


REFUSED = [
    ("OptionErrors", (("x",), ("y",)), "options", None),
    ("DifferenceError", (), "inputs", 1),
    ("DifferenceError", ("x",), "data", 1),
    ("OptionError", (), "not_called", None),
    ("DisagreementError", (), "failed", 1),
    ("OptionError", (), "inside_step", None),
    ("OptionError", ("model",), "outside_step", None),
    ("OptionError", ("model", "backward"), "outside_step", None),
    ("OptionError", ("module",), "conflict", None),
    ("OptionError", (), "too_late", None),
    ("OptionError", ("head",), "changed", None),
]


def test_wrong_requests_are_told_on_every_rank_and_the_next_step_runs(world):
    """The rank that fails by itself has its own error."""
    first, second = world.run(requests, size=2)

    assert REFUSED == [fields(each) for each in first]
    own = [("RuntimeError", (), "", None) if at == 4 else row for at, row in enumerate(REFUSED)]
    assert own == [fields(each) for each in second]


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
    return failure(smp.step(bad_class), model, x, y), time.monotonic() - began


@pytest.mark.parametrize(
    ("what", "cause"),
    [
        ("error", ("ValueError", (), "")),
        ("plain backward", ("OptionError", (), "plain_backward")),
        ("two calls", ("OptionError", (), "called_twice")),
        ("no gradient", ("OptionError", ("tensors",), "option")),
        ("mean", ("OptionError", ("grad_tensors",), "option")),
    ],
)
def test_what_fails_behind_the_model_ends_the_step_on_every_rank(world, what, cause):
    (first, _), (second, _) = per_rank = world.run(fails, what, size=2)

    assert cause == second.cause
    assert first.why == second.why
    for found, seconds in per_rank:
        assert ("StepError", "step", 1) == (found.type, found.kind, found.rank)
        assert seconds < 10


def impossible(rank, size):
    start(size, microbatches=3)
    return failure(train_step, smp.DistributedModel(net()), *batch())


def test_a_plan_that_cannot_be_is_told_on_every_rank(world):
    for found in world.run(impossible, size=2):
        assert ("PlanError", ("microbatches",)) == (found.type, found.about)
