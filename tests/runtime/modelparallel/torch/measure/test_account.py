# SPDX-License-Identifier: Apache-2.0
"""Counted operations, bytes, saved memory and workspace equal the theoretical numbers."""

import pytest
import torch
from measuring import CPU, accounted
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils.flop_counter import FlopCounterMode

from smdist.modelparallel.torch.measure.stand_in import fake

ROWS, WIDTH, HIDDEN = 6, 8, 20
FLOAT = 4


def rows(*shape):
    return torch.randn(*shape, requires_grad=True)


def flops(work):
    return sum(each.flops for each in work)


def kept_bytes(found, *inputs):
    """Return all bytes that autograd saves, of inputs and outputs too."""
    outputs = {each.storage: each.num_bytes for each in found.outputs if each.is_kept}
    from_inputs = sum(inputs[i].untyped_storage().nbytes() for i in found.kept_inputs)
    return found.hidden_bytes + sum(outputs.values()) + from_inputs


def test_a_matrix_product_takes_2mnk_operations():
    """Forward once, backward once for the input and once for the weight."""
    found = accounted(nn.Linear(WIDTH, HIDDEN, bias=False), rows(ROWS, WIDTH))
    once = 2 * ROWS * WIDTH * HIDDEN

    assert (once, 2 * once, once) == (
        flops(found.forward),
        flops(found.backward),
        flops(found.input_gradient),
    )


def test_a_product_moves_its_operands_and_its_result():
    found = accounted(nn.Linear(WIDTH, HIDDEN, bias=False), rows(ROWS, WIDTH))

    assert FLOAT * (ROWS * WIDTH + WIDTH * HIDDEN + ROWS * HIDDEN) == sum(
        work.num_bytes for work in found.forward
    )


def test_a_lookup_does_not_read_its_whole_table():
    """A lookup counts the rows that it returns and the ids, not the whole table."""
    found = accounted(nn.Embedding(10_000, WIDTH), torch.zeros(ROWS, dtype=torch.long))

    assert 2 * FLOAT * ROWS * WIDTH + 8 * ROWS == sum(work.num_bytes for work in found.forward)


@pytest.mark.parametrize("depth", [1, 2, 5])
def test_linears_and_relus_keep_one_tensor_a_layer(depth):
    """ReLU keeps its result, which is the input that the next Linear keeps."""
    layers = [each for _ in range(depth) for each in (nn.Linear(WIDTH, WIDTH), nn.ReLU())]
    x = rows(ROWS, WIDTH)
    found = accounted(nn.Sequential(*layers), x)

    assert (depth + 1) * FLOAT * ROWS * WIDTH == kept_bytes(found, x)
    assert frozenset({0}) == found.kept_inputs


def test_attention_keeps_what_flash_attention_keeps():
    """Queries, keys, values, the result, and one number for each row of each head."""
    q, k, v = (rows(2, 4, 16, 8) for _ in range(3))
    found = accounted(Attending(), q, k, v)

    assert 4 * FLOAT * q.numel() + FLOAT * 2 * 4 * 16 == kept_bytes(found, q, k, v)


def test_attention_computes_two_products_forward_and_five_backward():
    q, k, v = (rows(2, 4, 16, 8) for _ in range(3))
    found = accounted(Attending(), q, k, v)
    product = 2 * 2 * 4 * 16 * 16 * 8

    assert (2 * product, 5 * product) == (flops(found.forward), flops(found.backward))


def test_attention_that_shows_its_scores_keeps_them():
    """Scores are rows x heads x length x length: the reason that flash attention exists."""
    q, k = rows(2, 4, 16, 8), rows(2, 4, 16, 8)
    found = accounted(Scoring(), q, k)

    assert FLOAT * (2 * q.numel() + 2 * 4 * 16 * 16) == kept_bytes(found, q, k)


@pytest.mark.parametrize(
    ("module", "shape"),
    [
        (nn.Conv2d(3, 5, 3, padding=1), (2, 3, 8, 8)),
        (nn.LSTM(WIDTH, HIDDEN), (4, 2, WIDTH)),
        (nn.TransformerEncoderLayer(WIDTH, 2, HIDDEN, dropout=0.0), (4, 2, WIDTH)),
    ],
    ids=["convolution", "lstm", "transformer"],
)
def test_operations_are_those_that_torch_counts(module, shape):
    """Forward as FlopCounterMode counts it, with attention written out for it."""
    x = rows(*shape)
    with (
        torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH),
        FlopCounterMode(display=False) as counter,
    ):
        module(x)

    assert counter.get_total_flops() == flops(accounted(module, x).forward)


@pytest.mark.parametrize("module", [nn.BatchNorm1d(WIDTH), nn.GELU(), nn.LayerNorm(WIDTH)])
def test_fakes_count_as_real_tensors_do(module):
    """Counts on fake tensors equal those on real tensors."""
    expected = accounted(module, rows(ROWS, WIDTH))
    mode = FakeTensorMode(allow_non_fake_inputs=True)
    with mode:
        found = accounted(module, rows(ROWS, WIDTH), make=fake(mode, CPU))

    assert expected == found


def test_a_view_costs_nothing_and_is_its_input():
    found = accounted(nn.Flatten(), rows(ROWS, WIDTH, 2))

    assert () == found.forward
    assert [0] == [output.input for output in found.outputs]
    assert 0 == kept_bytes(found)


def test_workspace_is_what_a_pass_holds_beside_what_it_keeps():
    """Five tensors of which one is kept are alive when the sum is made."""
    found = accounted(Waving(), rows(ROWS, WIDTH))

    assert FLOAT * ROWS * WIDTH == found.hidden_bytes
    assert 4 * FLOAT * ROWS * WIDTH == found.workspace_bytes


class Attending(nn.Module):
    def forward(self, q, k, v):
        return nn.functional.scaled_dot_product_attention(q, k, v)


class Scoring(nn.Module):
    def forward(self, q, k):
        return torch.softmax(q @ k.transpose(-1, -2), dim=-1)


class Waving(nn.Module):
    def forward(self, x):
        kept = x.exp()
        one, other = x.detach() + 1, x.detach() + 2
        return kept + (one + other)
