# SPDX-License-Identifier: Apache-2.0
"""`gradient_clipping` counts for every optimizer of a model, whoever made it."""

import torch
from smp_nets import batch, failure, net, outcome, start, train_step
from torch import nn

import smdist.modelparallel.torch as smp

NORM = 1e-3


def moved(model, step):
    """How far a step takes the parameters of all ranks."""
    before = [p.detach().clone() for p in model.parameters()]
    step()
    rest = [p.detach() - q for p, q in zip(model.parameters(), before, strict=True)]
    here = sum(each.square().sum().item() for each in rest)
    return sum(smp.allgather(here, smp.PP_GROUP)) ** 0.5


def plain(rank, size):
    """An optimizer of torch's made before the cut, one made after it, and one of something else."""
    start(size, gradient_clipping=NORM)
    raw = net()
    first = torch.optim.SGD(raw.parameters(), lr=1.0)
    model = smp.DistributedModel(raw)
    train_step(model, *batch())
    lone = nn.Parameter(torch.zeros(()))
    lone.grad = torch.ones(())
    if rank == 0:
        torch.optim.SGD([lone], lr=1.0).step()
    found = [moved(model, first.step)]
    train_step(model, *batch())
    second = torch.optim.SGD(model.parameters(), lr=1.0)
    told = failure(second.step, lambda: None)
    return *found, moved(model, second.step), lone.item(), told


def test_optimizers_of_torch_clip_too(world):
    """By the norm of all ranks; an optimizer of other parameters steps by itself."""
    for rank, (first, second, lone, refused) in enumerate(world.run(plain, size=2)):
        assert abs(first / NORM - 1) < 1e-2
        assert abs(second / NORM - 1) < 1e-2
        assert lone == (-1 if rank == 0 else 0)
        assert ("OptionError", ("gradient_clipping",)) == (refused.type, refused.about)


def frozen(rank, size):
    """All is frozen on the rank of the first stage, before the cut."""
    start(size, gradient_clipping=NORM)
    raw = net()
    raw.layers.requires_grad_(False)
    smp.set_partition(raw.head, size - 1)
    optimizer = smp.DistributedOptimizer(torch.optim.SGD(raw.head.parameters(), lr=1.0))
    model = smp.DistributedModel(raw)
    train_step(model, *batch())
    first = moved(model, optimizer.step)
    train_step(model, *batch())
    return len(optimizer.param_groups[0]["params"]), first


def test_ranks_with_nothing_to_train_take_part(world):
    """Their optimizer has no parameters left."""
    found = world.run(frozen, size=2)

    assert 0 == found[0][0]
    for _, first in found:
        assert abs(first / NORM - 1) < 1e-2


def fused(rank, size):
    """A fused optimizer divides by the scale itself, after gradients were clipped."""
    start(size, gradient_clipping=NORM)
    model = smp.DistributedModel(net())
    scaler = smp.amp.GradScaler("cpu", init_scale=2.0**10)

    @smp.step
    def scaled_step(model, x, y):
        loss = nn.functional.cross_entropy(model(x)["logits"], y)
        model.backward(scaler.scale(loss))
        return loss

    scaled_step(model, *batch())
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0, fused=True)
    return moved(model, lambda: scaler.step(optimizer))


def test_gradients_that_are_still_scaled_are_clipped_to_a_scaled_norm(world):
    """What the parameters move by is what was asked for."""
    for far in world.run(fused, size=2):
        assert abs(far / NORM - 1) < 1e-2


def with_a_loss_of_its_own(rank, size):
    """One optimizer for a model and for what is in no stage; then one for each."""
    start(size)
    raw, lone = net(), nn.Parameter(torch.zeros(3))
    optimizer = smp.DistributedOptimizer(torch.optim.SGD([*raw.parameters(), lone], lr=1.0))
    model = smp.DistributedModel(raw)
    train_step(model, *batch())
    told = [failure(optimizer.step), failure(optimizer.step)]
    lone.requires_grad_(False)
    return told, outcome(optimizer.step)


def test_an_optimizer_with_parameters_of_no_stage_is_refused(world):
    """Each time; frozen ones do no harm."""
    for told, (fine, _) in world.run(with_a_loss_of_its_own, size=2):
        assert [("OptionError", ("optimizer",))] * 2 == [(each.type, each.about) for each in told]
        assert "OptionError" != fine
