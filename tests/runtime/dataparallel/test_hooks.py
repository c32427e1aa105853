# SPDX-License-Identifier: Apache-2.0
"""Communication hooks compress gradients and average them as they say."""

import pytest
import torch
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.nn.parallel import DistributedDataParallel

from smdist.dataparallel.torch.hooks import bf16_compress_hook, bf16_compress_wrapper

SIZE = 3


def gradient(rank, dtype=torch.float32):
    """What one rank's backward gives for the weight of a Linear without bias."""
    generator = torch.Generator().manual_seed(rank)
    return torch.randn(1, 1000, generator=generator).to(dtype).float()


def hooked(rank, size, name, view):
    model = nn.Linear(1000, 1, bias=False)
    model = DistributedDataParallel(model, gradient_as_bucket_view=view)
    model.register_comm_hook(None, HOOKS[name])
    for _ in range(2):  # buckets are made again after the first backward
        model.zero_grad(set_to_none=False)
        model(gradient(rank)).sum().backward()
    return model.module.weight.grad


HOOKS = {
    "bf16": bf16_compress_hook,
    "bf16 of all-reduce": bf16_compress_wrapper(default_hooks.allreduce_hook),
    "fp16": default_hooks.fp16_compress_hook,
}


@pytest.mark.parametrize("view", [True, False])
def test_bf16_rounds_twice(world, view):
    """Each rank's gradient and their average, which is taken in float32 in rank order."""
    total = sum(gradient(rank, torch.bfloat16) for rank in range(SIZE))
    expected = (total / SIZE).bfloat16().float()

    for answer in world.run(hooked, "bf16", view, size=SIZE):
        assert torch.equal(expected, answer)


@pytest.mark.parametrize("view", [True, False])
@pytest.mark.parametrize(("name", "digits"), [("bf16 of all-reduce", 7), ("fp16", 9)])
def test_compressed_gradients_are_the_average_within_rounding(world, name, digits, view):
    """The wrapper around torch's own hook; torch's own half-precision hook."""
    expected = sum(gradient(rank) for rank in range(SIZE)) / SIZE
    answers = world.run(hooked, name, view, size=SIZE)

    assert all(torch.equal(answers[0], answer) for answer in answers)
    assert torch.allclose(expected, answers[0], rtol=2**-digits, atol=2.0**-digits)


def powersgd(rank, size):
    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Linear(64, 64))
    state = powerSGD_hook.PowerSGDState(None, matrix_approximation_rank=4, start_powerSGD_iter=2)
    model.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
    for _ in range(4):
        model.zero_grad()
        model(torch.full((2, 64), rank + 1.0)).square().mean().backward()
    return model.module.weight.grad


def uncompressed(rank, size):
    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Linear(64, 64))
    model(torch.full((2, 64), rank + 1.0)).square().mean().backward()
    return model.module.weight.grad


def test_powersgd_is_near_what_it_compresses(world):
    """Its hook waits for an all-reduce in the callback of another; the gradient has rank one."""
    one, other = world.run(powersgd, size=2, deadline=30)
    expected, _ = world.run(uncompressed, size=2)

    assert torch.equal(one, other)
    assert torch.allclose(expected, one, rtol=1e-3, atol=1e-3 * expected.abs().max())
