# SPDX-License-Identifier: Apache-2.0
"""Parameters frozen after the cut: by those that a rank has, or on the whole model."""

import pytest
from smp_nets import batch, gradients, net, outcome, plain_gradients, start, train_step

import smdist.modelparallel.torch as smp


def biases(model, trained=False):
    for name, parameter in model.named_parameters():
        if name.endswith("bias"):
            parameter.requires_grad_(trained)


def by_rank(rank, size, tied):
    """Freeze, and train again, what this rank has; each time a step."""
    start(2)
    model = smp.parallelize(net(tied=tied), costs="estimate")
    train_step(model, *batch())
    found = []
    for trained in (False, True):
        model.zero_grad()
        biases(model, trained)
        kind, text = outcome(train_step, model, *batch())
        found.append((kind, sorted(gradients(model)) if kind == "ok" else text))
    return found


@pytest.mark.parametrize(("size", "tied"), [(2, False), (2, True), (4, False)])
def test_each_rank_may_freeze_what_it_has(world, size, tied):
    every = set(plain_gradients(net(tied=tied), 4))
    weights = {name for name in every if not name.endswith("bias")}

    per_rank = world.run(by_rank, tied, size=size)

    for at, expected in enumerate((weights, every)):
        assert ["ok"] * size == [found[at][0] for found in per_rank], per_rank
        names = {name for found in per_rank for name in found[at][1]}
        assert expected == names - ({"head.weight"} if tied else set())


def by_one(rank, size):
    """Rank 0 alone freezes what rank 1 has."""
    start(2)
    model = smp.parallelize(net(), costs="estimate")
    train_step(model, *batch())
    if rank == 0:
        model.module.head.weight.requires_grad_(False)
    return outcome(train_step, model, *batch())


def test_what_a_rank_freezes_of_another_is_told_on_both(world):
    inputs = "4 x 0.0 torch.float32[2, 8] in training with gradients"

    for kind, text in world.run(by_one, size=2):
        assert "DifferenceError" == kind
        assert (
            "rank 1 has other settings of the model than rank 0 of the same pipeline: all ranks of"
            f" one pipeline run the same batch; rank 0 has {inputs}, frozen: head.weight, rank 1"
            f" has {inputs}. Call model.train() and model.eval() alike on all ranks of a pipeline,"
            " and freeze parameters of model.module alike on all ranks." == text
        )
