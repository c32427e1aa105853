# SPDX-License-Identifier: Apache-2.0
"""Fused attention with dropout on a rank's heads draws the mask of one process."""

import pytest
import torch
from error_fields import fields_raised
from torch.nn import functional

from smdist.modelparallel.torch.tensor_splits import DropoutCalls, SplitDraw

DEGREE, HEADS, QUERIES, KEYS, WIDTH = 2, 4, 5, 6, 8
RATE = 0.4


def inputs(dtype, key_heads=HEADS):
    torch.manual_seed(1)
    lengths = (HEADS, QUERIES), (key_heads, KEYS), (key_heads, KEYS)
    return [torch.randn(3, *sizes, WIDTH, dtype=dtype, requires_grad=True) for sizes in lengths]


def attended(values, rank=None, **options):
    """Return the output of attention, whole or of one rank, and the next random number."""
    torch.manual_seed(5)
    draws = {} if rank is None else {0: SplitDraw(1, DEGREE, rank)}
    with DropoutCalls(draws) as calls:
        found = functional.scaled_dot_product_attention(*values, dropout_p=RATE, **options)
    return found, torch.rand(1), calls


def parts(values, **options):
    found = []
    for rank in range(DEGREE):
        own = [each.chunk(DEGREE, 1)[rank] for each in values]
        found.append(attended(own, rank, **options))
    return found


PADDING = torch.ones(3, 1, 1, KEYS, dtype=torch.bool)
PADDING[0, ..., 4:] = PADDING[1] = False  # the second sample has no key at all


@pytest.mark.parametrize(
    ("dtype", "limit"), [(torch.float64, 1e-14), (torch.float32, 1e-6), (torch.bfloat16, 0)]
)
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"is_causal": True},
        {"attn_mask": PADDING},
        {"scale": 0.5},
        {"enable_gqa": True},
    ],
    ids=lambda options: "".join(options) or "plain",
)
def test_heads_of_all_ranks_are_those_of_one_process(options, dtype, limit):
    values = inputs(dtype, HEADS // 2 if "enable_gqa" in options else HEADS)
    whole, after, _ = attended(values, **options)
    split = parts(values, **options)
    found = torch.cat([each for each, _, _ in split], 1)
    grads = torch.autograd.grad(whole.square().sum(), values)
    of_parts = torch.autograd.grad(found.square().sum(), values)

    assert (whole - found).abs().max() <= limit
    assert all(after == each for _, each, _ in split)  # generators stay alike
    for one, other in zip(grads, of_parts, strict=True):
        assert (one - other).abs().max() <= 10 * max(limit, torch.finfo(dtype).eps * 10)


def test_a_mask_of_numbers_is_added():
    values = inputs(torch.float64)
    mask = torch.randn(QUERIES, KEYS, dtype=torch.float64)
    whole, _, _ = attended(values, attn_mask=mask)
    found = torch.cat([each for each, _, _ in parts(values, attn_mask=mask)], 1)

    assert torch.allclose(whole, found, rtol=0, atol=1e-14)


def test_calls_are_numbered_and_those_with_dropout_have_the_shape_of_weights():
    values = inputs(torch.float32)
    with DropoutCalls({}) as calls:
        functional.dropout(values[0], 0.1, True)
        functional.scaled_dot_product_attention(*values)
        functional.scaled_dot_product_attention(*values, None, 0.1)

    assert {0: values[0].shape, 2: (3, HEADS, QUERIES, KEYS)} == calls.shapes
    assert {2} == calls.attentions


def test_accelerators_are_refused():
    """Their kernels draw other numbers."""
    values = [each.detach().to("meta") for each in inputs(torch.float32)]

    class OnGpu(torch.Tensor):
        device = torch.device("cuda")

    values[0] = values[0].as_subclass(OnGpu)

    assert [("dropout_p", "accelerator")] == fields_raised(lambda: attended(values, 0))
