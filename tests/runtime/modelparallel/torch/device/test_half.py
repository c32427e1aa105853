# SPDX-License-Identifier: Apache-2.0
"""Training in float16 on a device: two stages, float32 master weights, a loss scale."""

import accelerator
import pytest
import torch
from torch import nn

import smdist.modelparallel.torch as smp

STEPS = 4
SLOTS = {"staging_slot_bytes": 4096, "staging_slots": 3}
DYNAMIC = {"init_scale": 2.0**8, "scale_window": 2}


def model():
    """Return a model without layer normalization: the test device has none in float16."""
    with torch.random.fork_rng(devices=[], device_type="cpu"):
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(8, 32), nn.GELU(), nn.Linear(32, 32), nn.Linear(32, 4))


def batch():
    numbers = torch.Generator().manual_seed(1)
    return torch.randn(8, 8, generator=numbers), torch.randn(8, 4, generator=numbers)


def plain():
    """Train in float32 on the CPU; return the losses."""
    whole, (x, y), losses = model(), batch(), []
    optimizer = torch.optim.AdamW(whole.parameters(), lr=0.01)
    for _ in range(STEPS):
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(whole(x), y)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def halved(rank, size):
    """Train in float16 on the device; return losses, scales and the types of what is held."""
    accelerator.set_seed(rank)
    smp.init(smp.ModelParallel(pipeline_parallel_degree=size, microbatches=2, fp16=True))
    wrapped = smp.DistributedModel(model().to(accelerator.NAME), trace_device="cpu")
    optimizer = smp.DistributedOptimizer(
        torch.optim.AdamW(wrapped.parameters(), lr=0.01),
        dynamic_loss_scale=True,
        dynamic_loss_args=DYNAMIC,
    )

    @smp.step
    def train(network, x, y):
        loss = nn.functional.mse_loss(network(x), y)
        network.backward(loss)
        return loss

    losses, scales = [], []
    x, y = (each.to(accelerator.NAME) for each in batch())
    for _ in range(STEPS):
        optimizer.zero_grad()
        losses.append(train(wrapped, x, y).reduce_mean().item())
        optimizer.step()
        scales.append(optimizer.loss_scale)
    types = {(each.dtype, each.device.type) for each in wrapped.parameters()}
    smp.session.end()
    torch.accelerator.synchronize()
    return losses, scales, types, accelerator.take_stale_uses()


def test_two_stages_in_float16(pipelines):
    """The scale doubles after each two steps without an infinity."""
    found = pipelines.run_ranks(halved, size=2, staging=SLOTS)

    for losses, scales, types, stale in found:
        assert accelerator.NEVER == stale
        assert {(torch.float16, accelerator.NAME)} == types
        assert [256.0, 512.0, 512.0, 1024.0] == scales
        assert plain() == pytest.approx(losses, rel=5e-3)
