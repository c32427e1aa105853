# SPDX-License-Identifier: Apache-2.0
"""Functions of values whose sequence is split give the numbers and gradients of whole values."""

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from smdist.modelparallel.torch.tensor_parallel.simulated_peers import (
    SimulatedPeers,
    SimulatedRanks,
)
from smdist.modelparallel.torch.tensor_splits import (
    SequencePart,
    SequenceSplit,
    sliced_sequence,
    whole_sequences,
)
from smdist.modelparallel.torch.tensor_splits.sequence_borders import Gathering, scattered
from smdist.modelparallel.torch.tensor_splits.sequence_part import summed_or_scattered

ROWS, WIDTH = 3, 4


class Doubled(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return 2 * x

    @staticmethod
    def backward(ctx, grad):
        return 2 * grad


def set_item(x, weight):
    y = x * 1
    y[:, 0] = weight
    return y


def changed_view(x, weight):
    y = x * 1
    first = y.flatten(1)
    first *= 2
    return y + weight


def in_place(x, weight):
    y, z = x * 1, x * 2
    y += weight
    y.mul_(z)
    return y


def changed_without_grad(x, weight):
    y = x * weight
    with torch.no_grad():
        y.mul_(3)
    return y * y


def seen_without_grad(x, weight):
    y = x * weight
    with torch.no_grad():
        largest = y.amax(1, keepdim=True)
    return y.cumsum(1) / largest


def hooked(x, weight):
    y = x * weight
    y.register_hook(lambda grad: grad * torch.arange(grad.shape[1])[:, None])
    return y.tanh()


def llama_norm(x, weight):
    y = x.to(torch.float64)
    return weight * (y * torch.rsqrt(y.pow(2).mean(-1, keepdim=True) + 1e-6)).type_as(x)


def again(x, weight, *, reentrant):
    def norm(y):
        return functional.layer_norm(y * weight, (WIDTH,)) + y

    return checkpoint(norm, x, use_reentrant=reentrant)


# Functions of a value and of a vector, with the number of gathered values in the forward pass.
ALONE = {
    "sum": lambda x, weight: x + weight,
    "of positions": lambda x, weight: x + weight * torch.arange(x.shape[1])[:, None],
    "of samples": lambda x, weight: weight * torch.ones(ROWS, 1, 1) - x,
    "twice": lambda x, weight: x * x.sigmoid() / (2 + weight.tanh()),
    "layer norm": lambda x, weight: functional.layer_norm(x, (WIDTH,), weight, weight * 2),
    "rms norm": lambda x, weight: functional.rms_norm(x, [WIDTH], weight),
    "norm of Llama": llama_norm,
    "mean": lambda x, weight: x - x.mean(dim=(-1,), keepdim=True) * weight,
    "gelu": lambda x, weight: functional.gelu(x * weight),
    "whole item": lambda x, weight: x[:, slice(0, None), :] * weight,
    "same shape": lambda x, weight: x.view(-1, x.shape[1], WIDTH) * weight,
    "in place": in_place,
    "hook": hooked,
}
GATHERED = {
    "sum of positions": lambda x, weight: x.cumsum(1) * weight,
    "mean of all": lambda x, weight: x.mean() * weight,
    "mean of positions": lambda x, weight: x.mean(1, keepdim=True) * weight,
    "softmax of positions": lambda x, weight: (x * weight).softmax(1),
    "norm of positions": lambda x, weight: functional.layer_norm(x, x.shape[1:]) * weight,
    "linear": lambda x, weight: functional.linear(x, weight.expand(2, WIDTH)),
    "one position": lambda x, weight: x[:, 1] * weight,
    "transposed": lambda x, weight: (x.transpose(1, 2) * weight[:, None]).reshape(ROWS, -1),
    "more dimensions": lambda x, weight: x * weight[:, None, None, None],
    "list": lambda x, weight: torch.cat([x, x * weight], -1),
    "set item": set_item,
    "changed view": changed_view,
    "in place without gradients": changed_without_grad,
    "without gradients": seen_without_grad,
    "custom function": lambda x, weight: Doubled.apply(x * weight),
    "reentrant checkpoint": lambda x, weight: again(x, weight, reentrant=True),
}
UNCOUNTED = {"checkpoint": lambda x, weight: again(x, weight, reentrant=False)}


class CountedPeers(SimulatedPeers):
    """Peers that count their all-gathers."""

    count = 0

    def all_gather(self, tensor):
        """Return the tensors of all ranks."""
        self.count += 1
        return super().all_gather(tensor)


def run(function, degree, length):
    """Return value and gradients with a whole value and with slices, and the all-gathers."""
    numbers = torch.Generator().manual_seed(2)
    x = torch.randn(ROWS, length, WIDTH, dtype=torch.float64, generator=numbers)
    weight = torch.randn(WIDTH, dtype=torch.float64, generator=numbers)
    ranks = SimulatedRanks(degree)

    def one(rank, *, is_sliced=True):
        given, vector = x.clone().requires_grad_(), weight.clone().requires_grad_()
        peers = CountedPeers(ranks, rank)
        value = sliced_sequence(given, peers) if is_sliced else given
        found = function(value, vector)
        count = peers.count
        found = whole_sequences(found)
        (
            found * torch.linspace(-1, 2, found.numel(), dtype=torch.float64).view(found.shape)
        ).sum().backward()
        return (found.detach(), given.grad, vector.grad), count

    expected, _ = one(0, is_sliced=False)
    return expected, ranks.run(one)


@pytest.mark.parametrize(("degree", "length"), [(2, 4), (4, 6), (3, 3)])
@pytest.mark.parametrize("name", [*ALONE, *GATHERED, *UNCOUNTED])
def test_values_and_gradients_are_those_of_whole_values(name, degree, length):
    function = (ALONE | GATHERED | UNCOUNTED)[name]
    expected, found = run(function, degree, length)

    for each, count in found:
        torch.testing.assert_close(each, expected, rtol=1e-12, atol=1e-12)
        assert name in UNCOUNTED or (count > 0) is (name in GATHERED)


@pytest.mark.parametrize("length", [4, 7])
@pytest.mark.parametrize("in_place", [False, True])
def test_dropout_uses_a_slice_of_the_whole_mask(length, in_place):
    """On one process, a mask is drawn in the order of memory."""

    def dropped(x, weight):
        torch.manual_seed(5)
        return functional.dropout(x * weight, 0.4, True, in_place)

    x = torch.ones(ROWS, length, WIDTH)
    ranks = SimulatedRanks(2)
    split = [SequenceSplit(ranks.peers(rank), 1, length) for rank in range(2)]
    parts = [
        dropped(SequencePart(each.own(x).clone(), each), torch.ones(WIDTH)).part for each in split
    ]

    assert torch.equal(dropped(x, torch.ones(WIDTH)), torch.cat(parts, 1))


def test_products_save_a_slice_and_gather_it_once_for_the_backward_pass():
    """Queries, keys and values: one all-gather forward, one backward for all three."""
    x = torch.randn(2, 5, WIDTH, dtype=torch.float64)
    ranks = SimulatedRanks(2)
    layers = [nn.Linear(WIDTH, 6).double() for _ in range(3)]
    given = x.clone().requires_grad_()
    sum((layer(given) ** 2).sum() for layer in layers).backward()
    expected = given.grad, [layer.weight.grad.clone() for layer in layers]

    def one(rank):
        peers = CountedPeers(ranks, rank)
        split = SequenceSplit(peers, 1, 5)
        own = [layer.weight.detach().chunk(2)[rank].clone().requires_grad_() for layer in layers]
        bias = [layer.bias.detach().chunk(2)[rank] for layer in layers]
        part = split.own(x).clone().requires_grad_()
        gathering = Gathering(part, split)
        with gathering.saving():
            found = [
                functional.linear(gathering.whole, weight, each)
                for weight, each in zip(own, bias, strict=True)
            ]
        sum((each**2).sum() for each in found).backward()
        return part.grad, [weight.grad for weight in own], peers.count

    found = ranks.run(one)
    torch.testing.assert_close(torch.cat([each[0] for each in found], 1), expected[0])
    for at, grad in enumerate(expected[1]):
        torch.testing.assert_close(torch.cat([each[1][at] for each in found]), grad)
    assert [2, 2] == [each[2] for each in found]


def test_sums_that_are_no_sequences_stay_whole():
    ranks = SimulatedRanks(4)
    shapes = [(5, WIDTH), (2, 3, WIDTH), (2, 3, 5, WIDTH)]

    def one(rank):
        terms = [torch.ones(shape, requires_grad=True) for shape in shapes]
        with torch.no_grad():
            silent = summed_or_scattered(torch.ones(2, 5, WIDTH), ranks.peers(rank))
        return [summed_or_scattered(each, ranks.peers(rank)) for each in terms], silent

    for found, silent in ranks.run(one):
        assert not any(isinstance(each, SequencePart) for each in (*found, silent))
        assert all(map(torch.equal, found, (torch.full(shape, 4.0) for shape in shapes)))


@pytest.mark.parametrize("function", [lambda x: x.requires_grad_(), lambda x: x.detach_()])
def test_functions_that_cannot_act_on_a_slice_are_refused(function):
    split = SequenceSplit(SimulatedRanks(1).peers(0), 1, 2)
    with pytest.raises(TypeError, match="leave sequence_parallel out"):
        function(SequencePart(torch.ones(1, 2, 3), split))


def test_the_sum_of_slices_is_scattered():
    ranks = SimulatedRanks(3)
    terms = [torch.randn(2, 7, 3, dtype=torch.float64) for _ in range(3)]

    def one(rank):
        term = terms[rank].clone().requires_grad_()
        found = scattered(term, SequenceSplit(ranks.peers(rank), 1, 7))
        (found * (rank + 1)).sum().backward()
        return found.detach(), term.grad

    found = ranks.run(one)
    grad = torch.cat([torch.full((2, n, 3), r + 1.0) for r, n in enumerate((3, 2, 2))], 1).double()
    torch.testing.assert_close(torch.cat([each[0] for each in found], 1), sum(terms))
    assert all(torch.equal(each[1], grad) for each in found)


@pytest.mark.parametrize("length", [6, 7])
def test_slices_and_whole_values_keep_the_order_of_memory(length):
    """Dropout draws its numbers in this order, and attention of torch puts positions first."""
    terms = [torch.randn(length, ROWS, WIDTH).transpose(0, 1) for _ in range(2)]
    ranks = SimulatedRanks(2)

    def exchange(rank):
        split = SequenceSplit(ranks.peers(rank), 1, length)
        part = split.reduce_scatter(terms[rank])
        return part, split.all_gather(part)

    parts, wholes = zip(*ranks.run(exchange), strict=True)

    assert torch.equal(sum(terms), torch.cat(parts, 1))
    for part, whole in zip(parts, wholes, strict=True):
        assert part.transpose(0, 1).is_contiguous()
        assert torch.equal(sum(terms), whole)
        assert terms[0].stride() == whole.stride()
