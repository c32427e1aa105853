# SPDX-License-Identifier: Apache-2.0
"""Optimizers that were made before the cut go on with the parameters of their rank."""

import pytest
import torch
from smp_nets import batch, failure, net, start, train_step

import smdist.modelparallel.torch as smp


def grouped(model):
    """Two groups, with a scheduler's options of their own."""
    named = dict(model.named_parameters())
    head = [named.pop("head.weight"), named.pop("head.bias")]
    groups = [{"params": list(named.values())}, {"params": head, "lr": 0.5, "mark": "head"}]
    return torch.optim.AdamW(groups, lr=0.01)


def rewritten(rank, size, sharding):
    start(2, sharding=sharding)
    raw = net()
    plain = grouped(raw)
    optimizer = smp.DistributedOptimizer(plain)
    model = smp.DistributedModel(raw)
    schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)
    for _ in range(2):
        optimizer.zero_grad()
        train_step(model, *batch())
        optimizer.step()
        schedule.step()
    local = {id(p) for p in model.parameters()}
    held = [{id(p) for p in group["params"]} for group in optimizer.param_groups]
    assert set().union(*held) == local
    assert {id(p) for p in plain.state} <= local
    assert isinstance(optimizer, torch.optim.Optimizer)
    rates = [group["lr"] for group in plain.param_groups]
    state = optimizer.local_state_dict()
    assert state["_smp_is_partial"]
    optimizer.load_state_dict(state)
    optimizer.step()
    return [len(each) for each in held], rates, optimizer.param_groups[1]["mark"]


@pytest.mark.parametrize(("size", "sharding"), [(2, "none"), (4, "full")])
def test_groups_keep_their_options_and_hold_what_is_here(world, size, sharding):
    found = world.run(rewritten, sharding, size=size)

    for lengths, rates, mark in found:
        assert [0.0025, 0.125] == rates
        assert "head" == mark
        assert lengths[0] > 0
    assert {0, 2} == {lengths[1] for lengths, _, _ in found}


def late(rank, size):
    """Made before the cut and after it."""
    start(size, gradient_clipping=1e-6)
    model = smp.DistributedModel(net())
    first = smp.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=1.0, momentum=0.5))
    told = failure(first.step, lambda: None)
    train_step(model, *batch())
    before = [p.detach().clone() for p in model.parameters()]
    first.step()
    moved = [(p - q).norm().item() for p, q in zip(model.parameters(), before, strict=True)]
    second = smp.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=1.0))
    return told, sum(moved), len(second.param_groups[0]["params"]) == len(before)


def test_gradients_are_clipped_before_the_step_and_closures_are_refused(world):
    for told, moved, is_local in world.run(late, size=2):
        assert ("OptionError", ("closure",)) == (told.type, told.about)
        assert 0 < moved < 1e-5
        assert is_local


def saved(rank, size, sharding):
    """State that is whole, this rank's, or another rank's."""
    start(2, sharding=sharding)
    raw = net()
    optimizer = smp.DistributedOptimizer(grouped(raw))
    model = smp.DistributedModel(raw)
    train_step(model, *batch())
    optimizer.step()
    whole, part = optimizer.state_dict(), optimizer.local_state_dict()
    train_step(model, *batch())
    optimizer.step()
    optimizer.load_state_dict(whole)
    again = optimizer.state_dict()
    foreign = smp.allgather(part, smp.PP_GROUP)[1 - smp.pp_rank()]
    told = failure(optimizer.load_state_dict, foreign) if sharding == "none" else None
    if sharding == "full":
        optimizer.load_state_dict(part)
    bare = {key: value for key, value in whole.items() if not key.startswith("_smp")}
    return whole, again, told, failure(optimizer.load_state_dict, bare)


@pytest.mark.parametrize(("size", "sharding"), [(2, "none"), (4, "full")])
def test_whole_state_loads_by_name_and_as_pytorchs_in_one_process(world, size, sharding):
    plain = net()
    optimizer = grouped(plain)

    for whole, again, told, bare in world.run(saved, sharding, size=size):
        optimizer.load_state_dict({k: v for k, v in whole.items() if not k.startswith("_smp")})
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                assert parameter.shape == optimizer.state[parameter]["exp_avg"].shape
        for number, state in whole["state"].items():
            assert torch.equal(state["exp_avg"], again["state"][number]["exp_avg"])
        assert 0.5 == whole["param_groups"][1]["lr"]
        assert "missing" == bare.kind
        if sharding == "none":
            assert ("OptionError", "missing") == (told.type, told.kind)
            assert told.about != bare.about
