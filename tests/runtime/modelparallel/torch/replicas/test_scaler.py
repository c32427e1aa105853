# SPDX-License-Identifier: Apache-2.0
"""Scaled losses: an overflow anywhere skips the update everywhere."""

import math
from functools import partial

import pytest
import tied
import torch
from error_fields import fields_raised
from replicated import Pipeline, Replicated, furthest, plain_step
from smp_nets import batch, net, start, train_step

import smdist.modelparallel.torch as smp
from sagemaker_dist.errors import OptionError
from smdist.modelparallel.torch.amp import GradScaler

START = 2.0**10


def made(size, **options):
    torch.set_num_threads(1)
    mine = Replicated(tied.specimen(), Pipeline(num_microbatches=2), size, **options)
    optimizer = torch.optim.SGD(mine.replicas.parameters.values(), lr=0.1)
    return mine, optimizer, GradScaler(init_scale=START, growth_interval=1)


def spoilt_then_clean(rank, size, sharding):
    """Two steps, the first with an infinite gradient on rank 1 alone."""
    mine, optimizer, scaler = made(size, sharding=sharding)
    before = mine.values()
    steps = []
    for number in range(2):
        optimizer.zero_grad()
        mine.step(scale=scaler.get_scale())
        if rank == 1 and number == 0:
            gradient = mine.replicas.parameters["norm.bias"].grad
            getattr(gradient, "_local_tensor", gradient).fill_(math.inf)
        scaler.step(optimizer)
        scaler.update()
        is_same = all(torch.equal(before[name], value) for name, value in mine.values().items())
        steps.append((is_same, scaler.get_scale()))
    return steps


@pytest.mark.parametrize("sharding", ["none", "optimizer"])
def test_an_overflow_on_one_rank_skips_the_step_of_all(world, sharding):
    """The scale is halved on all, and doubled after the next step, which is clean."""
    found = world.run(spoilt_then_clean, sharding, hosts="aabb", deadline=30)

    assert [[(True, START / 2), (False, START)]] * 4 == found


def against_one_process(rank, size, sharding):
    mine, optimizer, scaler = made(size, sharding=sharding)
    mine.step(scale=scaler.get_scale())
    scaler.unscale_(optimizer)
    return furthest(plain_step(tied.specimen(), 4).gradients, mine.gradients())


@pytest.mark.parametrize("sharding", ["none", "full"])
def test_unscaled_gradients_are_those_of_one_process(world, sharding):
    """`unscale_` may come before the step, as for clipping."""
    for error, name in world.run(against_one_process, sharding, hosts="aabb", deadline=30):
        assert error < 1e-6, name


def without_gradients(rank, size):
    """No rank of stage 1 has any, and no loss was scaled here."""
    mine, optimizer, scaler = made(size)
    mine.step(scale=scaler.get_scale())
    if mine.groups.pp_rank == 1:
        optimizer.zero_grad()
    scaler.step(optimizer)
    scaler.update()
    return scaler.get_scale(), scaler.state_dict()["scale"]


def test_a_rank_without_gradients_takes_part(world):
    """torch's own refuses to step there."""
    assert [(2 * START, 2 * START)] * 4 == world.run(without_gradients, hosts="aabb", deadline=30)


def half_on_one_rank(rank, size):
    mine, optimizer, scaler = made(size)
    mine.step(scale=scaler.get_scale())
    if rank == 1:
        mine.replicas.parameters["norm.bias"].data = torch.zeros(6, dtype=torch.float16)
        mine.replicas.parameters["norm.bias"].grad = torch.zeros(6, dtype=torch.float16)
    with pytest.raises(OptionError) as caught:
        scaler.unscale_(optimizer)
    return caught.value.kind, str(caught.value)


def test_gradients_in_float16_are_refused_on_all_ranks(world):
    """By name: nobody waits for the rank that has them."""
    said = world.run(half_on_one_rank, hosts="aabb", deadline=30)

    assert {
        (
            "unsupported_dtype",
            "GradScaler cannot unscale gradients of rank 1: that of norm.bias is torch.float16:"
            " float16 cannot represent scaled gradients and small updates. Keep parameters in"
            " float32, and use torch.autocast in the step; or pass fp16=True to ModelParallel, and"
            " call step() of a smp.DistributedOptimizer without a GradScaler.",
        )
    } == set(said)


def test_scaler_that_is_off_changes_nothing():
    """As torch's."""
    scaler = GradScaler(enabled=False)
    parameter = torch.nn.Parameter(torch.ones(2))
    parameter.grad = torch.ones(2)
    scaler.step(torch.optim.SGD([parameter], lr=1.0))
    scaler.update()

    assert [0, 0] == parameter.tolist()
    assert 1.0 == scaler.get_scale()


def scaled_by_torch(rank, size):
    """Return the errors of torch's own scaler for a split model, and its scale for another one."""
    start(2)
    model = smp.DistributedModel(net(), trace_device="cpu")
    optimizer = smp.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1))
    train_step(model, *batch())
    scaler = torch.amp.GradScaler("cpu", init_scale=START)
    calls = (scaler.unscale_, scaler.step)
    found = [fields_raised(partial(call, optimizer)) for call in calls]
    other = torch.nn.Linear(2, 2)
    alone = torch.optim.SGD(other.parameters(), lr=0.1)
    scaler.scale(other(torch.ones(2)).sum()).backward()
    scaler.step(alone)
    scaler.update()
    return found, scaler.get_scale()


def test_torchs_own_scaler_is_refused_for_a_split_model(world):
    """On every rank, also on those without the loss; a model of one rank is left to it."""
    refused = [("GradScaler", "unsupported")]

    assert [([refused, refused], START)] * 2 == world.run(scaled_by_torch, size=2, deadline=30)
