# SPDX-License-Identifier: Apache-2.0
"""What DistributedDataParallel does beside averaging: each against one process."""

import multiprocessing

import pytest
import torch
from torch import nn
from torch.distributed.algorithms.join import Join
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler
from training import ROWS, WIDTH, are_close, batches, loss_of, net, sgd, train, weights

SIZE = 3


class TwoHeads(nn.Module):
    """Each forward uses one of its heads."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.body = nn.Linear(WIDTH, 8)
        self.heads = nn.ModuleList(nn.Linear(8, 2) for _ in range(3))

    def forward(self, rows, head):
        return self.heads[head](self.body(rows))


def unused(rank, size):
    model = DistributedDataParallel(TwoHeads(), find_unused_parameters=True)
    for step in range(2):  # the third head is used by nobody
        model(batches()[step], head=rank % 2).square().mean().backward()
    return [parameter.grad for parameter in model.module.parameters()]


def test_unused_parameters_are_found(world):
    """Ranks use different heads; a head that nobody uses has no gradient."""
    alone = TwoHeads()
    for step in range(2):
        for rank in range(SIZE):
            (alone(batches()[step], head=rank % 2).square().mean() / SIZE).backward()
    expected = [parameter.grad for parameter in alone.parameters()]

    for rank in world.run(unused, size=SIZE):
        assert are_close(expected[:-2], rank[:-2])
        assert [None, None] == expected[-2:] == rank[-2:]


def accumulate(rank, size):
    model = DistributedDataParallel(net())
    *first, last = batches()
    with model.no_sync():
        for batch in first:
            loss_of(model(batch[rank::size])).backward()
    loss_of(model(last[rank::size])).backward()
    return [parameter.grad for parameter in model.parameters()]


def test_no_sync_accumulates(world):
    """The one all-reduce after no_sync() carries the gradients of all backwards."""
    alone = net()
    for batch in batches():
        loss_of(alone(batch)).backward()
    expected = [parameter.grad for parameter in alone.parameters()]

    assert all(are_close(expected, rank) for rank in world.run(accumulate, size=SIZE))


def uneven(rank, size, whole):
    """Rank r has r batches more than rank 0; it says how many it trained on."""
    model = DistributedDataParallel(net())
    optimizer = sgd(model)
    count = 0
    with model.join(divide_by_initial_world_size=whole):
        for batch in batches()[: 2 + rank]:
            optimizer.zero_grad()
            loss_of(model(batch[rank::size])).backward()
            optimizer.step()
            count += 1
    return count, weights(model)


@pytest.mark.parametrize("whole", [True, False])
def test_join_lets_ranks_run_out_of_batches(world, whole):
    """The rest go on; the sum is divided by all ranks, or by those that are left."""
    alone = net()
    optimizer = sgd(alone)
    for step, batch in enumerate(batches()[: 1 + SIZE]):
        active = [rank for rank in range(SIZE) if step < 2 + rank]
        optimizer.zero_grad()
        for rank in active:
            share = SIZE if whole else len(active)
            (loss_of(alone(batch[rank::SIZE])) / share).backward()
        optimizer.step()

    for rank, (count, trained) in enumerate(world.run(uneven, whole, size=SIZE)):
        assert 2 + rank == count
        assert are_close(weights(alone), trained)


def uneven_and_loud(rank, size):
    model = DistributedDataParallel(net())
    with Join([model], throw_on_early_termination=True):
        for batch in batches()[: 1 + rank]:
            loss_of(model(batch)).backward()


def test_join_can_raise_on_every_rank(world):
    """throw_on_early_termination: one rank's end is an error everywhere."""
    for ok, said in world.outcomes(uneven_and_loud, size=2, deadline=20):
        assert not ok
        assert "exhausted" in said


class Twice(nn.Module):
    """Uses its parameters twice in one forward, the second time with recomputation."""

    def __init__(self):
        super().__init__()
        self.inner = net()
        self.back = nn.Linear(4, WIDTH)

    def forward(self, rows):
        rows = self.back(self.inner(rows))
        return torch.utils.checkpoint.checkpoint(self.inner, rows, use_reentrant=True)


def static(rank, size):
    return weights(train(DistributedDataParallel(Twice(), static_graph=True), rank, size))


def test_static_graph_with_recomputation(world):
    """Parameters that are used twice are reduced once."""
    expected = weights(train(Twice()))

    assert all(are_close(expected, rank) for rank in world.run(static, size=SIZE))


def buffers(rank, size):
    model = DistributedDataParallel(nn.BatchNorm1d(WIDTH))
    for batch in batches():
        model(batch[rank::size]).sum().backward()
    return model.module.running_mean, model.module.running_var


def test_buffers_come_from_rank_0(world):
    """Before each forward everybody takes rank 0's statistics."""
    for rank, (mean, variance) in enumerate(world.run(buffers, size=SIZE)):
        alone = nn.BatchNorm1d(WIDTH)
        for batch in batches()[:-1]:
            alone(batch[0::SIZE])
        alone(batches()[-1][rank::SIZE])

        assert are_close([alone.running_mean, alone.running_var], [mean, variance])


FORKS = {"num_workers": 2, "multiprocessing_context": "fork"}  # a World's ranks would spawn


def loaded(rank, size):
    # A World's ranks are daemons, which may have no children; a user's ranks are not.
    multiprocessing.current_process()._config["daemon"] = False
    rows = TensorDataset(batches().flatten(0, 1))
    sampler = DistributedSampler(rows, size, rank, shuffle=False)
    model = DistributedDataParallel(net())
    optimizer = sgd(model)
    for _ in range(2):
        for (batch,) in DataLoader(rows, ROWS // size, sampler=sampler, **FORKS):
            optimizer.zero_grad()
            loss_of(model(batch)).backward()
            optimizer.step()
    multiprocessing.current_process()._config["daemon"] = True
    return weights(model)


def test_training_goes_on_while_workers_are_forked(world):
    """DataLoader's workers are forks of a rank with a running engine, anew in each epoch."""
    alone = net()
    optimizer = sgd(alone)
    for batch in [*batches(), *batches()]:
        optimizer.zero_grad()
        loss_of(alone(batch)).backward()
        optimizer.step()

    assert all(are_close(weights(alone), rank) for rank in world.run(loaded, size=SIZE))


def autocast(rank, size):
    model = DistributedDataParallel(net())
    with torch.autocast("cpu", torch.bfloat16):
        return weights(train(model, rank, size))


def test_mixed_precision(world):
    """Autocast keeps float32 gradients, near those of float32 training."""
    expected = weights(train(net()))
    ranks = world.run(autocast, size=SIZE)

    assert all(are_close(ranks[0], rank, atol=0) for rank in ranks)
    assert are_close(expected, ranks[0], atol=5e-2)
