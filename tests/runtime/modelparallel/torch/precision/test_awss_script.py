# SPDX-License-Identifier: Apache-2.0
"""A script in the manner of AWS's GPT example trains in float16 as it is."""

import pytest
import torch
from half_training import RATE, batch, gpt, loss_of

import smdist.modelparallel.torch as smp

STEPS = 4


@smp.step
def train_step(model, ids, positions, targets):
    loss = loss_of(model(ids, positions)["logits"], targets)
    model.backward(loss)
    return loss


def script(rank, size, fp16):
    """Train as the script does: its calls in their order, with its arguments."""
    config = {
        "ddp": True,
        "pipeline_parallel_degree": 2,
        "microbatches": 4,
        "fp16": fp16,
        "delayed_parameter_initialization": True,
        "skip_tracing": True,
    }
    smp.init(config)
    dtype = torch.float16 if smp.state.cfg.fp16 else torch.get_default_dtype()
    with smp.model_creation(tensor_parallelism=smp.tp_size() > 1, dtype=dtype):
        model = gpt()
    model = smp.DistributedModel(model, trace_device="gpu", backward_passes_per_step=1)
    m = model.get_module()
    optimizer = torch.optim.AdamW(m.parameters(), lr=RATE, betas=(0.9, 0.95))
    optimizer = smp.DistributedOptimizer(
        optimizer,
        static_loss_scale=None,
        dynamic_loss_scale=True,
        dynamic_loss_args={"scale_window": 1000, "min_scale": 1, "delayed_shift": 2},
    )
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer.optimizer, 1, gamma=0.5)
    losses, skipped, step = [], [], 0
    while step < STEPS and len(skipped) < 40:
        optimizer.zero_grad(set_to_none=True)
        loss_mb = train_step(model, *batch(0))
        losses.append(loss_mb.reduce_mean().item())
        optimizer.clip_master_grads(1.0)
        optimizer.step()
        skipped.append(optimizer.overflow)
        if not (smp.state.cfg.fp16 and optimizer.overflow):
            scheduler.step()
            step += 1
    return losses, skipped, optimizer.loss_scale, optimizer.param_groups[0]["lr"]


@pytest.mark.parametrize("fp16", [True, False])
def test_awss_script_trains(world, fp16):
    """In float16, the first steps are skipped until the scale of 2**32 has come down."""
    (losses, skipped, scale, rate), other = world.run(script, fp16, size=2)

    assert (losses, skipped, scale, rate) == other
    count = sum(skipped)
    assert [True] * count + [False] * STEPS == skipped
    assert (4 < count < 40) if fp16 else count == 0, skipped
    assert scale == (2.0 ** (32 - (count - 1)) if fp16 else 1.0)
    assert losses[:count] == [losses[0]] * count  # nothing was updated
    assert losses[-1] < losses[0]
    assert RATE / 2**STEPS == rate
