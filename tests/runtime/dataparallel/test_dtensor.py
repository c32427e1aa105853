# SPDX-License-Identifier: Apache-2.0
"""DTensor and tensor parallelism on smdist compute what one process computes."""

import pytest
import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)
from training import WIDTH, alone, are_close, batches, net, sgd, train

PLACES = [Replicate(), Shard(0), Shard(1)]


def matrix():
    """Neither 7 rows nor 5 columns can be shared equally by two or more."""
    return torch.arange(35.0).view(7, 5)


def there_and_back(rank, size):
    """Every way from one placement to another, and what comes out at its end."""
    mesh = init_device_mesh("cpu", (size,))
    ways = [(before, after) for before in PLACES for after in PLACES]
    return [
        distribute_tensor(matrix(), mesh, [before]).redistribute(mesh, [after]).full_tensor()
        for before, after in ways
    ]


@pytest.mark.parametrize("size", [1, 2, 3, 4])
def test_a_tensor_survives_every_redistribution(world, size):
    """Shards of rows, of columns, copies: in each order, in unequal parts."""
    for rank in world.run(there_and_back, size=size):
        assert all(torch.equal(matrix(), tensor) for tensor in rank)


def sums(rank, size):
    mesh = init_device_mesh("cpu", (size,))
    mine = matrix() * (rank + 1)
    parts = {"sum": DTensor.from_local(mine, mesh, [Partial()])}
    parts["avg"] = DTensor.from_local(mine, mesh, [Partial("avg")])
    parts["max"] = DTensor.from_local(mine, mesh, [Partial("max")])
    return {
        name: [part.redistribute(mesh, [place]).full_tensor() for place in PLACES]
        for name, part in parts.items()
    }


def test_partial_sums_become_whole(world):
    """All-reduce to copies, reduce-scatter to shards: sum, average, maximum."""
    expected = {"sum": matrix() * 6, "avg": matrix() * 2, "max": matrix() * 3}
    for rank in world.run(sums, size=3):
        for name, whole in expected.items():
            assert all(torch.equal(whole, tensor) for tensor in rank[name])


def on_two_dimensions(rank, size):
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("rows", "columns"))
    tensor = distribute_tensor(matrix(), mesh, [Shard(0), Shard(1)])
    product = tensor @ tensor.t()
    return tensor.to_local(), product.full_tensor(), tensor.sum().full_tensor()


def test_a_mesh_of_two_dimensions(world):
    """A quarter on each rank; products and sums of it are those of the whole."""
    for rank, (local, product, total) in enumerate(world.run(on_two_dimensions)):
        assert torch.equal(matrix().split(4)[rank // 2].split(3, dim=1)[rank % 2], local)
        assert torch.equal(matrix() @ matrix().t(), product)
        assert torch.equal(matrix().sum(), total)


PLAN = {"0": ColwiseParallel, "2": RowwiseParallel}


def tensor_parallel(rank, size):
    mesh = init_device_mesh("cpu", (size,))
    model = parallelize_module(net(), mesh, {name: make() for name, make in PLAN.items()})
    train(model)  # every rank sees every row
    parameters = [parameter.detach() for parameter in model.parameters()]
    return [p.full_tensor() if isinstance(p, DTensor) else p for p in parameters]


def test_tensor_parallel_layers_train_what_one_process_trains(world):
    """Columns of one layer, rows of the next, and one all-reduce between."""
    assert all(are_close(alone(), rank) for rank in world.run(tensor_parallel))


class Block(nn.Module):
    """A norm on shards of the sequence between two linear layers on shards of the width."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.norm = nn.LayerNorm(WIDTH)
        self.up = nn.Linear(WIDTH, 32)
        self.down = nn.Linear(32, WIDTH)

    def forward(self, rows):
        return self.down(self.up(self.norm(rows)).tanh())


def sequence_parallel(rank, size):
    mesh = init_device_mesh("cpu", (size,))
    plan = {
        "norm": SequenceParallel(use_local_output=False),
        "up": ColwiseParallel(input_layouts=Shard(1)),
        "down": RowwiseParallel(),
    }
    model = parallelize_module(Block(), mesh, plan)
    train_block(model)
    return [parameter.detach().full_tensor() for parameter in model.parameters()]


def train_block(model):
    """Every rank sees the whole batch, as one sequence."""
    optimizer = sgd(model)
    for batch in batches():
        optimizer.zero_grad()
        model(batch[None]).square().mean().backward()
        optimizer.step()


def test_sequence_parallel_trains_what_one_process_trains(world):
    """All-gather of the sequence before the columns, in forward and back."""
    block = Block()
    train_block(block)
    expected = [parameter.detach() for parameter in block.parameters()]

    assert all(are_close(expected, rank, atol=1e-5) for rank in world.run(sequence_parallel))
