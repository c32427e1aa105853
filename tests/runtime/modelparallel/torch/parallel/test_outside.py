# SPDX-License-Identifier: Apache-2.0
"""What would be wrong without a word within a step, or in a module that was cut, is refused."""

import pytest
import torch
from smp_nets import batch, failure, loss_of, net, outcome, start, train_step

import smdist.modelparallel.torch as smp


def inside(rank, size, kind):
    """One call within a step that belongs after it."""
    start(size)
    model = smp.DistributedModel(net())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    if kind.startswith("wrapped"):
        optimizer = smp.DistributedOptimizer(optimizer)
    scaler = smp.amp.GradScaler("cpu")
    calls = {
        "step": optimizer.step,
        "zero": optimizer.zero_grad,
        "model": model.zero_grad,
        "scaler": lambda: scaler.step(optimizer),
        "clip": lambda: torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0),
    }

    @smp.step
    def wrong(model, x, y):
        loss = loss_of(model, x, y)
        model.backward(loss)
        calls[kind.rpartition(" ")[2]]()
        return loss

    return failure(wrong, model, *batch())


KINDS = {
    "step": ("SGD", "step"),
    "wrapped step": ("SGD", "step"),
    "zero": ("SGD", "zero_grad"),
    "wrapped zero": ("SGD", "zero_grad"),
    "model": ("model", "zero_grad"),
    "scaler": ("GradScaler", "step"),
    "clip": ("clip_grad_norm_",),
}


@pytest.mark.parametrize(("kind", "name"), KINDS.items())
def test_an_optimizer_inside_a_step_is_refused_on_all_ranks(world, kind, name):
    first, second = world.run(inside, kind, size=2)

    assert ("OptionError", name, "inside_step") == second.cause
    assert first.why == second.why
    assert [("StepError", 1)] * 2 == [(each.type, each.rank) for each in (first, second)]


def another(rank, size):
    """An optimizer of something else is nobody's business, and all are used after the step."""
    start(size)
    model = smp.DistributedModel(net())
    other = torch.nn.Linear(1, 1)
    optimizers = [torch.optim.SGD(each.parameters(), lr=0.1) for each in (model, other)]

    @smp.step
    def run(model, x, y):
        loss = loss_of(model, x, y)
        model.backward(loss)
        optimizers[1].step()
        optimizers[1].zero_grad()
        return loss

    losses = []
    for _ in range(2):
        losses.append(run(model, *batch()).reduce_mean().item())
        optimizers[0].step()
        optimizers[0].zero_grad()
    return losses


def test_what_trains_something_else_runs_inside(world):
    first, second = world.run(another, size=2)[0]

    assert second < first


def of_module(rank, size):
    """The user's own module, before and after the cut."""
    start(size)
    model = smp.DistributedModel(net())
    assert list(model.state_dict()) == list(model.get_module().state_dict())
    named = outcome(lambda: model.layers)
    train_step(model, *batch())
    assert not any(value.is_meta for value in model.state_dict().values())
    found = [named, outcome(lambda: model.layers), failure(model.get_module().state_dict)]
    return [*found, outcome(lambda: model.nothing), hasattr(model, "layers")]


def test_what_the_users_module_lost_is_refused_with_where_it_is(world):
    """Its values, which are meta tensors; and its attributes are named where they are."""
    for before, after, state, none, has in world.run(of_module, size=2):
        for told, text in (before, after):
            assert "AttributeError" == told
            assert "model.get_module().layers" in text
        assert ("OptionError", "no_values") == (state.type, state.kind)
        assert "get_module" not in none[1]
        assert not has


def test_a_module_that_is_whole_has_its_state(world):
    """On one rank nothing is elsewhere."""

    assert [True] == world.run(whole, size=1)


def whole(rank, size):
    """Cut into one stage."""
    start(size)
    model = smp.DistributedModel(net())
    train_step(model, *batch())
    module = model.get_module()
    return list(module.state_dict()) == list(net().state_dict())
