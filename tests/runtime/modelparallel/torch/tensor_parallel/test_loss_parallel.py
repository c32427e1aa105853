# SPDX-License-Identifier: Apache-2.0
"""Losses on a split vocabulary are those on whole logits, and gather a few numbers a token."""

import pytest
import torch
from tensor_models import alone, loss_of, split, start, train, worst
from torch import nn
from torch.nn.functional import cross_entropy, nll_loss

import smdist.modelparallel.torch as smp
from sagemaker_dist import ModelParallel
from smdist.modelparallel.torch.tensor_parallel.simulated_peers import (
    SimulatedPeers,
    SimulatedRanks,
)
from smdist.modelparallel.torch.tensor_splits import VocabParallelLogits, whole_logits

ROWS, LENGTH, WORDS = 2, 5, 12
TOKENS = ROWS * LENGTH
IDS = torch.randint(WORDS, (ROWS, LENGTH), generator=torch.Generator().manual_seed(1))
IDS[0, 1] = -100
PARTS = {  # loss -> numbers of one all-gather
    "view": (lambda x: cross_entropy(x.view(-1, WORDS), IDS.view(-1)), 3 * TOKENS),
    "size": (lambda x: cross_entropy(x.view(-1, x.size(-1)), IDS.view(-1)), 3 * TOKENS),
    "flatten": (
        lambda x: cross_entropy(x.flatten(0, 1), IDS.flatten(), reduction="sum"),
        3 * TOKENS,
    ),
    "each token": (
        lambda x: cross_entropy(x.flatten(0, 1), IDS.flatten(), reduction="none"),
        3 * TOKENS,
    ),
    "smoothing": (
        lambda x: cross_entropy(x.reshape(-1, WORDS), IDS.flatten(), label_smoothing=0.1),
        4 * TOKENS,
    ),
    "shifted": (
        lambda x: cross_entropy(
            x[..., :-1, :].contiguous().view(-1, WORDS), IDS[..., 1:].reshape(-1)
        ),
        3 * (TOKENS - ROWS),
    ),
    "sliced": (
        lambda x: cross_entropy(x[:, :-1].reshape(-1, x.shape[-1]), IDS[:, 1:].reshape(-1)),
        3 * (TOKENS - ROWS),
    ),
    "masked": (lambda x: cross_entropy(x[IDS >= 0], IDS[IDS >= 0]), 3 * (TOKENS - 1)),
    "capped": (
        lambda x: cross_entropy((torch.tanh(x / 30.0) * 30.0).view(-1, WORDS), IDS.view(-1)),
        3 * TOKENS,
    ),
    "module": (lambda x: nn.CrossEntropyLoss()(x.view(-1, WORDS), IDS.view(-1)), 3 * TOKENS),
    "one token": (lambda x: cross_entropy(x[1, 0], IDS[1, 0]), 3),
    "all ignored": (
        lambda x: cross_entropy(x.flatten(0, 1), torch.full((TOKENS,), -100)),
        3 * TOKENS,
    ),
}
WHOLE = {
    "classes in the middle": lambda x: cross_entropy(x.transpose(1, 2), IDS),
    "weights": lambda x: cross_entropy(
        x.view(-1, WORDS), IDS.view(-1), torch.arange(1.0, WORDS + 1).double()
    ),
    "probabilities": lambda x: cross_entropy(x.view(-1, WORDS), torch.full((TOKENS, WORDS), 0.1)),
    "log_softmax": lambda x: nll_loss(torch.log_softmax(x, -1).view(-1, WORDS), IDS.view(-1)),
    "square": lambda x: x * x,
    "some words": lambda x: x[..., :5],
    "another view": lambda x: x.view(ROWS, LENGTH, 3, 4),
    "last dimension unknown": lambda x: x.view(LENGTH, ROWS, -1),
    "argmax": lambda x: x.argmax(-1).double(),
    "bias": lambda x: x + torch.arange(WORDS).double(),
    "positions": lambda x: x[[0, 1], [2, 3]],
    "words by a mask": lambda x: x[0, :, torch.arange(WORDS) % 3 == 0],
    "new dimension": lambda x: x[:, None],
    "text": lambda x: torch.tensor(float(len(repr(x.detach())))),
}


class CountedPeers(SimulatedPeers):
    """Peers that count the numbers of their messages."""

    def __init__(self, ranks, rank):
        super().__init__(ranks, rank)
        self.sent = []

    def all_gather(self, tensor):
        """Return the tensors of all ranks."""
        self.sent.append(tensor.numel())
        return super().all_gather(tensor)


def run(function, degree, dtype=torch.float64):
    """Return result and gradient with whole logits, and with those in parts, and the messages."""
    values = torch.randn(
        ROWS, LENGTH, WORDS, dtype=torch.float64, generator=torch.Generator().manual_seed(2)
    )
    logits = (3 * values).to(dtype).requires_grad_()
    expected = function(logits)
    if expected.requires_grad:
        expected.double().sum().backward()
    ranks = SimulatedRanks(degree)

    def one(rank):
        part = logits.detach().chunk(degree, -1)[rank].clone().requires_grad_()
        peers = CountedPeers(ranks, rank)
        found = whole_logits(function(VocabParallelLogits(part, peers)))
        if found.requires_grad:
            found.double().sum().backward()
        return found.detach(), part.grad, peers.sent

    found = ranks.run(one)
    grads = [each[1] for each in found]
    grad = None if grads[0] is None else torch.cat(grads, -1)
    for each in found:
        assert torch.equal(torch.nan_to_num(found[0][0]), torch.nan_to_num(each[0]))
    return (expected.detach(), logits.grad), (found[0][0], grad), found[0][2]


@pytest.mark.parametrize("degree", [2, 4])
@pytest.mark.parametrize("name", PARTS)
def test_losses_and_gradients_are_those_of_whole_logits(name, degree):
    function, count = PARTS[name]
    expected, found, sent = run(function, degree)
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12, equal_nan=True)
    assert [count] == sent


@pytest.mark.parametrize("name", WHOLE)
def test_other_functions_get_whole_logits(name):
    """Values, gradients, shapes and texts are those of ordinary tensors."""
    expected, found, sent = run(WHOLE[name], 2)
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)
    assert [ROWS * LENGTH * WORDS // 2] == sent


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_exponentials_are_summed_in_float32(dtype):
    expected, found, _ = run(PARTS["view"][0], 2, dtype)
    assert dtype == found[0].dtype == expected[0].dtype
    torch.testing.assert_close(found, expected)


@pytest.mark.parametrize(
    ("wrong", "error"),
    [
        (lambda x: cross_entropy(x.view(-1, WORDS), IDS.view(-1).clamp_min(0) + WORDS), IndexError),
        (lambda x: cross_entropy(x[0], IDS[0], ignore_index=-1), IndexError),
        (lambda x: cross_entropy(x[0], IDS[0], label_smoothing=2.0), RuntimeError),
        (lambda x: cross_entropy(x[0], IDS[0], reduction="median"), ValueError),
        (lambda x: cross_entropy(x[0], IDS[1, :2]), ValueError),
        (lambda x: x.view(-1, WORDS + 1), RuntimeError),
    ],
)
def test_errors_are_those_of_torch(wrong, error):
    with pytest.raises(error):
        wrong(torch.zeros(ROWS, LENGTH, WORDS))
    ranks = SimulatedRanks(2)
    parts = torch.zeros(2, ROWS, LENGTH, WORDS // 2)
    with pytest.raises(error):
        ranks.run(lambda rank: wrong(VocabParallelLogits(parts[rank], ranks.peers(rank))))


@smp.step
def loss_parallel_step(model, ids):
    with smp.loss_parallel():
        found = model(ids)
        output = getattr(found, "logits", found)
        assert isinstance(output, VocabParallelLogits)
        loss = loss_of(output, ids)
        model.backward(loss)
    return loss


def trained(rank, size, name, stages):
    if stages == 1:
        start(2)
    else:
        degrees = {"tensor_parallel_degree": 2, "pipeline_parallel_degree": stages}
        smp.init(ModelParallel(**degrees, pipeline="zero_bubble", microbatches=4))
    return train(*split(name), step=loss_parallel_step)


@pytest.mark.parametrize(("name", "stages"), [("mlp", 1), ("llama", 2)])
def test_training_is_that_of_one_process(world, name, stages):
    """The table is also the head, and the head of Llama is its own."""
    found = world.run(trained, name, stages, size=2 * stages, deadline=80)
    expected = alone(name)
    grads = {key: value for rank in found for key, value in rank.grads.items()}

    assert worst({key: grads[key] for key in expected.grads}, expected.grads) < 1e-9
    for rank in found:
        assert expected.losses == pytest.approx(rank.losses, rel=1e-8)
        assert worst(rank.state, expected.state) < 2e-8


def returned(rank, size):
    start(2)
    model, _ = split("mlp")
    ids = torch.arange(12).view(2, 6)

    @smp.step
    def evaluate(model, ids):
        with smp.loss_parallel():
            return model(ids)

    with torch.no_grad():
        scores = evaluate(model, ids).concat()
        with smp.loss_parallel():
            outside = model(ids)
        return type(scores), scores, float(cross_entropy(outside.flatten(0, 1), ids.flatten()))


def test_a_step_returns_whole_logits(world):
    """Code outside of the step may read them on one rank alone."""
    found = world.run(returned, size=2, deadline=80)
    for kind, scores, loss in found:
        assert torch.Tensor is kind
        assert torch.equal(found[0][1], scores)
        assert loss == pytest.approx(
            float(cross_entropy(scores.flatten(0, 1), torch.arange(12))), rel=1e-12
        )
