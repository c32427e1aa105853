# SPDX-License-Identifier: Apache-2.0
"""Whatever a model is trained with, split it gives the losses of one process."""

import pytest
import torch
from smp_nets import batch, loss_of, net, start
from torch import nn

import smdist.modelparallel.torch as smp

STEPS = 3


def losses(rank, size, degree, options, kind):
    start(degree, **options)
    raw = net(norm=nn.BatchNorm1d if kind == "batch norm" else nn.LayerNorm)
    if kind == "checkpoint":
        smp.set_activation_checkpointing(raw.layers, strategy="group_2")
    plain = torch.optim.AdamW(raw.parameters(), lr=0.01)
    made = smp.DistributedModel if kind != "parallelize" else smp.parallelize
    model = made(raw, **({"example": (batch()[0],)} if kind == "parallelize" else {}))
    optimizer = plain if kind == "plain optimizer" else smp.DistributedOptimizer(plain)
    scaler = smp.amp.GradScaler("cpu", enabled=kind == "scaler")

    @smp.step
    def train(model, x, y):
        with torch.autocast("cpu", torch.bfloat16, enabled=kind == "autocast"):
            loss = loss_of(model, x, y)
        model.backward(scaler.scale(loss))
        return loss

    found = []
    for _ in range(STEPS):
        optimizer.zero_grad()
        found.append(train(model, *batch()).reduce_mean().item())
        scaler.step(optimizer)
        scaler.update()
    return found, {k: v for k, v in model.state_dict().items() if "running" in k}


def plain_losses(kind="", max_norm=None):
    model = net(norm=nn.BatchNorm1d if kind == "batch norm" else nn.LayerNorm)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    found = []
    for _ in range(STEPS):
        optimizer.zero_grad()
        total = 0.0
        for x, y in zip(*(each.chunk(4) for each in batch()), strict=True):
            with torch.autocast("cpu", torch.bfloat16, enabled=kind == "autocast"):
                loss = loss_of(model, x, y) / 4
            loss.backward()
            total += loss.item()
        if max_norm is not None:
            nn.utils.clip_grad_norm_(model.parameters(), max_norm)
        optimizer.step()
        found.append(total)
    return found, {k: v for k, v in model.state_dict().items() if "running" in k}


@pytest.mark.parametrize(
    ("size", "degree", "options", "kind"),
    [
        (2, 2, {}, "parallelize"),
        (2, 2, {}, "checkpoint"),
        (2, 2, {}, "plain optimizer"),
        (2, 2, {}, "autocast"),
        (2, 2, {}, "scaler"),
        (2, 2, {}, "batch norm"),
        (2, 2, {"pipeline": "zero_bubble_v", "virtual_stages": 2}, "checkpoint"),
        (2, 2, {"pipeline": "interleaved_1f1b", "virtual_stages": 3}, "batch norm"),
        (2, "auto", {"pipeline": "auto", "microbatches": 4}, ""),
        (4, 2, {"sharding": "full"}, "plain optimizer"),
        (4, 2, {"sharding": "optimizer", "gradient_clipping": 0.1}, ""),
    ],
)
def test_losses_are_those_of_one_process(world, size, degree, options, kind):
    """Replicas are given the same batch, so that their mean is that of one."""
    expected, statistics = plain_losses(kind, options.get("gradient_clipping"))

    found = world.run(losses, degree, options, kind, size=size)

    for per_rank, buffers in found:
        assert expected == pytest.approx(per_rank, abs=2e-3 if kind == "autocast" else 1e-5)
        assert all(torch.allclose(buffers[name], statistics[name]) for name in buffers)
    assert any(buffers.keys() == statistics.keys() for _, buffers in found)
