# SPDX-License-Identifier: Apache-2.0
"""Float16 under tied parameters, shards, split layers and accumulation: the losses of one process.

Sums are in another order there than in one process, so losses differ by roundings of float16.
"""

import pytest
import torch
from half_training import RATE, SCALE, alone, batch, gpt, loss_of, made, start, train, train_step
from smp_nets import start as start_plain

import smdist.modelparallel.torch as smp
from smdist.modelparallel.torch.parallel.precision import convert
from smdist.modelparallel.torch.parallel.settings import Settings

STEPS = 3


def trained(rank, size, degree, options, tied):
    start(degree, **options)
    model, optimizer = made(tied=tied, kind=torch.optim.Adagrad)
    found = train(model, optimizer, STEPS)
    split = model.tensor_plan
    return found, {p.dtype for p in model.parameters()}, split and split.num_split > 0


@pytest.mark.parametrize(
    ("degree", "options", "tied"),
    [
        (2, {}, True),
        (1, {"sharding": "optimizer"}, True),
        pytest.param(1, {"sharding": "full"}, False, marks=pytest.mark.slow),
        (1, {"tensor_parallel_degree": 2}, False),
    ],
)
def test_losses_are_close_to_those_of_one_process(world, degree, options, tied):
    kind = torch.float32 if "sharding" in options else torch.float16
    expected = alone(STEPS, tied=tied, kind=torch.optim.Adagrad)

    for found, kinds, is_split in world.run(trained, degree, options, tied, size=2):
        assert {kind} == kinds
        assert expected.losses == pytest.approx(found.losses, abs=4e-3)
        assert [False] * STEPS == found.skipped
        assert {torch.float32} == {value.dtype for value in found.state.values()}
        assert is_split is ("tensor_parallel_degree" in options or None)


def created_in_half(rank, size, options):
    """Train a model that the script made in float16, as AWS's scripts do with `fp16`."""
    start(**options)
    model = smp.DistributedModel(gpt().half(), trace_device="cpu")
    own = torch.optim.Adagrad(model.parameters(), lr=RATE)
    found = train(model, smp.DistributedOptimizer(own, static_loss_scale=SCALE), STEPS)
    return found.losses, {p.dtype for p in model.parameters()}


def test_a_model_in_float16_has_float32_shards(world):
    """Shards are the master weights, whatever the dtype in which the script made the model."""
    expected = alone(STEPS, kind=torch.optim.Adagrad)

    for losses, kinds in world.run(created_in_half, {"sharding": "optimizer"}, size=2):
        assert {torch.float32} == kinds
        assert expected.losses == pytest.approx(losses, abs=4e-3)


@pytest.mark.parametrize("option", ["bf16", "fp16"])
def test_conversion_for_shards_widens_16_bits_alone(option):
    """Tied parameters stay one parameter; other dtypes stay as they are."""
    model = gpt(tied=True).to(torch.bfloat16)
    model.norm.double()
    convert(model, Settings(options=smp.ModelParallel(), sharding="full", **{option: True}))

    assert model.head.weight is model.words.weight
    assert (torch.float32, torch.float64) == (model.head.weight.dtype, model.norm.weight.dtype)


def logits_loss(output, targets):
    return loss_of(output["logits"], targets)


def without_smps_names(rank, size):
    """Return the losses of `train_step`, and what the model returns outside of a step."""
    smp.init(smp.ModelParallel(pipeline_parallel_degree=2, microbatches=4, pipeline="zero_bubble"))
    inputs = [batch(step)[:2] for step in range(STEPS)]
    model = smp.parallelize(gpt(), example=inputs[0], fp16=True)
    optimizer = smp.DistributedOptimizer(
        torch.optim.AdamW(model.parameters(), lr=RATE), static_loss_scale=SCALE
    )
    losses = []
    for step, given in enumerate(inputs):
        optimizer.zero_grad()
        found = model.train_step(given, logits_loss, targets=batch(step)[2])
        losses.append(found.reduce_mean().item())
        optimizer.step()
    with torch.no_grad():
        outside = model(*inputs[0])["logits"].dtype
    return losses, outside, model.evaluate(inputs[0])["logits"].dtype


def test_parallelize_converts_as_well(world):
    """Its argument is for one model; the schedule splits the backward pass."""
    expected = alone(STEPS).losses

    for losses, *kinds in world.run(without_smps_names, size=2):
        assert expected == pytest.approx(losses, abs=1e-3)
        assert [torch.float32] * 2 == kinds


def accumulated(rank, size):
    """Return the losses of two steps of half the batch, and whether the model is trained alike."""
    start_plain(1, fp16=True, microbatches=2)
    model = smp.DistributedModel(gpt(), trace_device="cpu", backward_passes_per_step=2)
    own = torch.optim.AdamW(model.parameters(), lr=0.01)
    optimizer = smp.DistributedOptimizer(own, static_loss_scale=2.0**10)
    for half in range(2):
        train_step(model, *(each.chunk(2)[half] for each in batch(0)))
    halved = [p.grad.mul_(0.5) for p in model.parameters()]  # sums of means over each half
    optimizer.step()
    return len(halved), model.state_dict(), optimizer.overflow


def test_gradients_of_several_passes_add_up(world):
    expected = alone(1).state

    ((count, state, overflow),) = world.run(accumulated, size=1)
    assert len(expected) == count
    assert not overflow
    assert all(torch.allclose(value, state[name], atol=2e-3) for name, value in expected.items())
