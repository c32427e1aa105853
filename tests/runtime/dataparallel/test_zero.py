# SPDX-License-Identifier: Apache-2.0
"""ZeroRedundancyOptimizer on smdist steps as the optimizer that it shares out."""

import pytest
import torch
from torch.nn.parallel import DistributedDataParallel
from training import are_close, net, train, weights

# torch.distributed.optim warns when it is imported, and warnings are errors here: only ranks do.
OPTIONS = {"lr": 0.01, "weight_decay": 0.1}


def trained(rank, size, view):
    from torch.distributed.optim import ZeroRedundancyOptimizer

    model = DistributedDataParallel(net())
    zero = ZeroRedundancyOptimizer(
        model.parameters(), torch.optim.AdamW, parameters_as_bucket_view=view, **OPTIONS
    )
    train(model, rank, size, zero)
    mine = len(zero.optim.state)
    zero.consolidate_state_dict(to=size - 1)
    return weights(model), mine, zero.state_dict() if rank == size - 1 else None


@pytest.mark.parametrize("view", [True, False])
def test_the_step_is_that_of_the_plain_optimizer(world, view):
    """Weights on every rank, and the whole state on the one that asked for it."""
    model = net()
    optimizer = torch.optim.AdamW(model.parameters(), **OPTIONS)
    train(model, optimizer=optimizer)
    answers = world.run(trained, view, size=3)
    state = answers[-1][2]["state"]

    assert len(weights(model)) == sum(mine for _, mine, _ in answers)
    assert all(are_close(weights(model), rank, atol=1e-5) for rank, _, _ in answers)
    for number, moments in optimizer.state_dict()["state"].items():
        assert are_close(moments.values(), state[number].values(), atol=1e-5)


def resumed(rank, size):
    """Train, save, and go on in a fresh optimizer."""
    from torch.distributed.optim import ZeroRedundancyOptimizer

    model = DistributedDataParallel(net())
    zero, again = (
        ZeroRedundancyOptimizer(model.parameters(), torch.optim.AdamW, **OPTIONS) for _ in range(2)
    )
    train(model, rank, size, zero)
    zero.consolidate_state_dict(to=0)
    saved = [zero.state_dict() if rank == 0 else None]
    torch.distributed.broadcast_object_list(saved, src=0)
    again.load_state_dict(saved[0])
    train(model, rank, size, again)
    return weights(model)


def test_a_saved_state_goes_on(world):
    model = net()
    optimizer = torch.optim.AdamW(model.parameters(), **OPTIONS)
    for _ in range(2):
        train(model, optimizer=optimizer)

    assert all(are_close(weights(model), rank, atol=1e-5) for rank in world.run(resumed, size=2))
