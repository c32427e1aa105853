# SPDX-License-Identifier: Apache-2.0
"""DistributedModel before, at and after its cut."""

import pytest
import torch
from smp_nets import (
    batch,
    failure,
    gradients,
    loss_of,
    merged,
    net,
    plain_gradients,
    start,
    train_step,
)
from torch import nn

import smdist.modelparallel.torch as smp


def life(rank, size):
    start(size)
    raw = net()
    names = [name for name, _ in raw.named_parameters()]
    held = sum(p.numel() for p in raw.parameters())
    model = smp.DistributedModel(raw)
    optimizer = smp.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1))
    seen = []
    model.register_post_partition_hook(lambda m, o: seen.append((m is model, o is optimizer)))
    before = [name for name, _ in model.named_parameters()]
    assert before == names
    assert not model.partitioned
    assert seen == []

    train_step(model, *batch())
    local = dict(model.local_named_parameters())
    assert model.partitioned
    assert seen == [(True, True)]
    assert model.get_module() is raw
    assert 0 < sum(p.numel() for p in local.values()) < held
    assert sum(p.numel() for p in raw.parameters() if not p.is_meta) < held
    assert {id(p) for p in local.values()} == {id(p) for p in model.local_parameters()}
    assert {id(p) for p in local.values()} == {
        id(p) for group in optimizer.param_groups for p in group["params"]
    }
    assert {name for name, _ in model.named_modules()} >= {n.rpartition(".")[0] for n in local}
    model.eval()
    assert not any(module.training for module in model.local_modules())
    model.train()
    assert all(module.training for module in model.modules())
    return names, list(local)


def test_before_the_cut_it_has_all_parameters_and_then_those_of_its_stages(world):
    per_rank = world.run(life, size=2)

    names, parts = per_rank[0][0], [local for _, local in per_rank]
    assert sorted(names) == sorted([*parts[0], *parts[1]])


def loads(rank, size):
    """Whole before the cut, whole after it, and each rank's own part."""
    start(size)
    wanted = {k: torch.full_like(v, 0.25) for k, v in net().state_dict().items()}
    model = smp.DistributedModel(net())
    model.load_state_dict(wanted)
    with torch.no_grad():
        model(batch()[0])
    first = model.state_dict()
    part = {
        k: v.clone() + 1 if isinstance(v, torch.Tensor) else v
        for k, v in model.local_state_dict().items()
    }
    model.load_state_dict(part)
    second = model.state_dict()
    told = failure(model.load_state_dict, {k: v for k, v in wanted.items() if "bias" not in k})
    wrong = failure(model.load_state_dict, {**wanted, **{k: torch.ones(1) for k in wanted}})
    return first, second, told, wrong


def test_state_dicts_are_whole_or_this_ranks_and_load_whenever(world):
    for first, second, told, wrong in world.run(loads, size=2):
        assert net().state_dict().keys() == first.keys() == second.keys()
        assert all((value == 0.25).all() for value in first.values())
        assert all((value == 1.25).all() for value in second.values())
        assert {"missing"} == {kind for _, kind in told.faults}
        assert all(name.endswith("bias") for (name,), _ in told.faults)
        assert {"shape"} == {kind for _, kind in wrong.faults}


def refused(rank, size):
    start(size)
    model = smp.DistributedModel(net())
    return [
        failure(call)
        for call in (
            model.join,
            lambda: model.register_comm_hook(None, None),
            lambda: smp.optimizers.FusedLamb([]),
            lambda: smp.DistributedOptimizer(
                torch.optim.SGD(model.parameters()), 0.0, dynamic_loss_args={"scale_window": 0}
            ),
            lambda: smp.DistributedOptimizer(model),
            lambda: smp.DistributedModel(nn.Linear(2, 2), overlapping_allreduce=False),
        )
    ]


def test_what_is_not_there_says_what_to_use(world):
    (told,) = world.run(refused, size=1)

    *unsupported, scaled, wrapped, overlapping = told
    assert [
        (("model", "join"), "unsupported"),
        (("model", "register_comm_hook"), "unsupported"),
        (("smp", "optimizers", "FusedLamb"), "unsupported"),
    ] == [(each.about, each.kind) for each in unsupported]
    assert [
        ("static_loss_scale",),
        ("dynamic_loss_args",),
        ("dynamic_loss_args", "scale_window"),
    ] == [about for about, _ in scaled.faults]
    assert [("optimizer",), ("overlapping_allreduce",)] == [wrapped.about, overlapping.about]


def accumulates(rank, size, options):
    """Two steps of half the batch, reduced once."""
    start(2, microbatches=2)
    model = smp.DistributedModel(net(tied=True), **options)
    x, y = batch(16)
    mine = slice(8 * smp.dp_rank(), 8 * smp.dp_rank() + 8)
    for at in (0, 4):
        train_step(model, x[mine][at : at + 4], y[mine][at : at + 4])
    return gradients(model)


@pytest.mark.parametrize(
    ("options", "factor"),
    [({"backward_passes_per_step": 2}, 2), ({"average_grads_across_microbatches": False}, 4)],
)
def test_gradients_add_up_over_passes_and_are_reduced_once(world, options, factor):
    """Microbatches of two: eight of them, of which each replica has a half."""
    expected = plain_gradients(net(tied=True), 8, rows=16)

    found = merged(world.run(accumulates, options, size=4))

    assert torch.equal(found["head.weight"], found["layers.0.0.weight"])  # the two are tied
    for name, gradient in expected.items():
        assert torch.allclose(gradient * factor, found[name], atol=1e-6), name


def single(rank, size):
    """One stage: no step needed."""
    start(1)
    model = smp.DistributedModel(net())
    x, y = batch()
    rows = slice(rank * (8 // size), (rank + 1) * (8 // size))
    model.backward(loss_of(model, x[rows], y[rows]))
    return gradients(model), failure(loss_of(model, x[rows], y[rows]).backward)


@pytest.mark.parametrize("size", [1, 2])
def test_one_stage_trains_outside_of_steps(world, size):
    expected = plain_gradients(net(), 1)

    for found, refused in world.run(single, size=size):
        assert all(torch.allclose(expected[name], found[name], atol=1e-6) for name in expected)
        assert ("OptionError", "plain_backward") == (refused.type, refused.kind)
