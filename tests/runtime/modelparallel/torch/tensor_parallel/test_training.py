# SPDX-License-Identifier: Apache-2.0
"""Training with split layers gives the numbers of one process, on 2 and on 4 ranks."""

import pytest
import torch
from smp_nets import failure
from tensor_models import (
    WIDTH,
    alone,
    batches,
    made,
    split,
    start,
    train,
    train_step,
    worst,
)
from torch import nn

import smdist.modelparallel.torch as smp

TOLERANCES = {torch.float64: 1e-9, torch.float32: 1e-5}


def trained(rank, size, name, dtype, degree, dropout=0.0):
    start(degree)
    return train(*split(name, dtype=dtype, dropout=dropout))


@pytest.mark.parametrize(
    ("name", "dtype", "degree", "size"),
    [
        ("mlp", torch.float64, 2, 2),
        ("mlp", torch.float32, 2, 4),
        ("gpt2", torch.float64, 2, 2),
        ("llama", torch.float32, 2, 2),
        ("encoder", torch.float64, 2, 2),
        ("written", torch.float64, 2, 2),
        pytest.param("gpt2", torch.float64, 4, 4, marks=pytest.mark.slow),
        pytest.param("llama", torch.float32, 2, 4, marks=pytest.mark.slow),
    ],
)
def test_gradients_losses_norms_and_weights_are_as_in_one_process(world, name, dtype, degree, size):
    found = world.run(trained, name, dtype, degree, size=size, deadline=80)
    expected, limit = alone(name, dtype=dtype), TOLERANCES[dtype]

    assert worst(found[0].grads, expected.grads) < limit
    assert worst(found[0].state, expected.state) < 20 * limit
    assert expected.norms == pytest.approx(found[0].norms, rel=10 * limit)
    means = [sum(each) / size for each in zip(*(rank.losses for rank in found), strict=True)]
    assert expected.losses == pytest.approx(means, rel=10 * limit)
    for rank in found:
        assert all(torch.equal(rank.state[key], value) for key, value in found[0].state.items())
    assert found[0].num_elements < sum(value.numel() for value in expected.grads.values())


@pytest.mark.parametrize(
    ("name", "count"), [("mlp", 7), ("smp", 14), ("written", 12), ("gpt2", 12), ("encoder", 10)]
)
def test_dropout_is_that_of_whole_layers(world, name, count):
    """In an MLP it is outside of split regions; in attention, inside.

    Torch's encoder applies dropout to a value whose memory has positions first.
    """
    whole = world.run(trained, name, torch.float64, 1, 0.3, size=1, deadline=80)[0]
    parts = world.run(trained, name, torch.float64, 2, 0.3, size=2, deadline=80)
    found, wanted = (
        {key: value for key, value in each.grads.items() if not key.endswith("key.bias")}
        for each in (parts[0], whole)
    )  # whose gradient is 0 but for rounding

    assert ([], count) == (whole.split, len(parts[0].split))
    assert whole.losses == pytest.approx(parts[0].losses, rel=1e-9)
    assert worst(found, wanted) < 1e-9
    assert whole.losses != pytest.approx(alone(name).losses, rel=1e-3)


def unlike(rank, size):
    """Rank 1 has two wider layers."""
    start(2)
    plain = made("mlp")
    if rank == 1:
        plain.up, plain.down = nn.Linear(WIDTH, 32).double(), nn.Linear(32, WIDTH).double()
    model = smp.DistributedModel(plain, trace_device="cpu")
    return failure(train_step, model, next(iter(batches(1))))


def test_a_rank_with_other_widths_names_a_module_that_differs(world):
    first, second = world.run(unlike, size=2, deadline=60)

    assert ("DisagreementError", "failed", 1) == (first.type, first.kind, first.rank)
    assert ("OptionError", ("up",), "difference") == (second.type, second.about, second.kind)
