# SPDX-License-Identifier: Apache-2.0
"""An infinite gradient on one rank skips the step of all, and lowers the scale on all."""

import warnings

import pytest
import torch
from half_training import DYNAMIC, batch, made, start, train, train_step
from smp_nets import failure

import smdist.modelparallel.torch as smp

RULES = {"init_scale": 2.0**10, "scale_window": 2, "min_scale": 1, "delayed_shift": 1}


def spoilt(rank, size, degree, options, max_norm):
    start(degree, **options)
    model, optimizer = made(**DYNAMIC, dynamic_loss_args=RULES)
    before = {name: value.float().clone() for name, value in model.state_dict().items()}
    first = train(model, optimizer, 1, spoil=[0], rank=rank, max_norm=max_norm)
    is_same = all(torch.equal(value, first.state[name]) for name, value in before.items())
    more = train(model, optimizer, 3, first=1, rank=rank, max_norm=max_norm)
    norms = [norm > 0 for norm in first.norms + more.norms]
    return is_same, first.skipped + more.skipped, first.scales + more.scales, norms, more.losses


@pytest.mark.parametrize(
    ("size", "degree", "options", "max_norm"),
    [
        (2, 2, {}, 1.0),
        pytest.param(2, 1, {}, None, marks=pytest.mark.slow),
        pytest.param(2, 1, {"sharding": "optimizer"}, None, marks=pytest.mark.slow),
        (2, 1, {"sharding": "full"}, 1.0),
        pytest.param(2, 1, {"tensor_parallel_degree": 2}, 1.0, marks=pytest.mark.slow),
    ],
)
def test_all_ranks_skip_alike(world, size, degree, options, max_norm):
    """The scale is halved at once, and doubled after two clean steps."""
    found = world.run(spoilt, degree, options, max_norm, size=size)

    for is_same, skipped, scales, norms, losses in found:
        assert is_same
        assert [True, False, False, False] == skipped
        assert [2.0**9, 2.0**9, 2.0**10, 2.0**10] == scales
        assert ([False, True, True, True] if max_norm else []) == norms
        assert losses == found[0][-1]


def refusals(rank, size, fp16):
    """Return what is refused with 16-bit parameters."""
    start(fp16=fp16, bf16=not fp16)
    model, optimizer = made(static_loss_scale=1.0)
    train_step(model, *batch(0))
    plain = torch.optim.SGD(model.parameters(), lr=0.1)
    found = [failure(plain.step)]
    if fp16:
        found.append(failure(torch.nn.utils.clip_grad_norm_, model.parameters(), 1.0))
        other = smp.DistributedOptimizer(plain)
        found += [failure(optimizer.step), failure(smp.amp.GradScaler("cpu").unscale_, other)]
    return [(each.about, each.kind) for each in found]


@pytest.mark.parametrize("fp16", [True, False])
def test_what_would_give_wrong_numbers_is_refused(world, fp16):
    expected = [(("optimizer",), "not_wrapped")]
    if fp16:
        expected += [(("clip_grad_norm_",), "scaled"), (("optimizer",), "conflict")]
        expected += [((), "unsupported_dtype")]

    assert [expected] == world.run(refusals, fp16, size=1)


def unscaled(rank, size):
    """Return what loss scales and clipping do in float32."""
    start(fp16=False)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        model, optimizer = made(**DYNAMIC)
    assert [UserWarning] == [each.category for each in caught]
    found = train(model, optimizer, 2, max_norm=0.1)
    return found.skipped, found.scales, [norm > 0.1 for norm in found.norms], optimizer.loss_scaler


def test_awss_arguments_are_harmless_in_float32(world):
    """Scripts of AWS pass them, and clip with `clip_master_grads`, in any precision."""
    assert [([False] * 2, [1.0] * 2, [True] * 2, None)] == world.run(unscaled, size=1)
