# SPDX-License-Identifier: Apache-2.0
"""Dropout on parts of a tensor has the bits of dropout on the whole tensor."""

import pytest
import torch
from torch import nn

from smdist.modelparallel.torch.tensor_splits import SplitDraw, is_dropout, turn_dropout

DEGREE = 2


def split(rank, dim, **options):
    module = nn.Dropout(**options)
    turn_dropout(module, SplitDraw(dim, DEGREE, rank))
    return module


def seeded(module, x):
    torch.manual_seed(5)
    return module(x)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("dim", [0, 1, 2])
@pytest.mark.parametrize("order", [(0, 1, 2), (2, 0, 1), (1, 0, 2)])
def test_parts_together_are_the_whole(order, dim, dtype):
    """The numbers are drawn in the order of memory, also for a transposed tensor."""
    sizes = (4, 6, 8)
    x = torch.randn([sizes[each] for each in order], dtype=dtype)
    x = x.permute([order.index(each) for each in range(3)])
    whole = seeded(nn.Dropout(0.4), x)
    after = torch.rand(1)
    parts = []
    for rank, part in enumerate(x.chunk(DEGREE, dim)):
        parts.append(seeded(split(rank, dim, p=0.4), part))
        assert after == torch.rand(1)  # the generator is where it is in one process

    assert torch.equal(whole, torch.cat(parts, dim))


def test_rates_of_0_and_1_and_evaluation_draw_nothing():
    x = torch.ones(2, 2)

    assert torch.equal(x, split(0, 1, p=0.5).eval()(x))
    assert torch.equal(x, split(0, 1, p=0.0)(x))
    assert torch.equal(torch.zeros(2, 2), split(0, 1, p=1.0)(x))


def test_in_place_changes_its_input():
    x = torch.ones(64, 2)
    found = seeded(split(1, 0, p=0.5, inplace=True), x)

    assert found is x
    assert {0.0, 2.0} == set(x.flatten().tolist())


def test_a_changed_dropout_is_a_dropout_still():
    module = split(0, 1, p=0.5)

    assert isinstance(module, nn.Dropout)
    assert "SplitDropout" == type(module).__name__
    assert not is_dropout(module)
    assert is_dropout(nn.Dropout())
    assert not is_dropout(nn.Dropout2d())
