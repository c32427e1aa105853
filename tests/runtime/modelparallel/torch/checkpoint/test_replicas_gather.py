# SPDX-License-Identifier: Apache-2.0
"""A replica gathers state by itself: SMP's scripts let the ranks of dp_rank 0 alone do it."""

import pytest
import torch
from smp_nets import batch, net, start, train_step
from torch import nn

import smdist.modelparallel.torch as smp

SECONDS = 60


def trained(**options):
    """One step of two replicas, of two stages each."""
    start(2, microbatches=2, **options)
    model = smp.DistributedModel(net(tied=True, norm=nn.BatchNorm1d), trace_device="cpu")
    optimizer = smp.DistributedOptimizer(torch.optim.AdamW(model.parameters(), lr=0.1))
    mine = slice(8 * smp.dp_rank(), 8 * smp.dp_rank() + 8)
    train_step(model, *(each[mine] for each in batch(16)))
    optimizer.step()
    return model, optimizer


def states(model, optimizer):
    return model.state_dict(), optimizer.state_dict()


def script(rank, size, path, options):
    """AWS's way to save, then a step and everybody's way."""
    model, optimizer = trained(**options)
    if smp.dp_rank() == 0:
        values, state = states(model, optimizer)
        if smp.rank() == 0:
            torch.save((values, state), path)
        on_first = model.state_dict(gather_to_rank0=True)
        assert len(on_first) == (0 if rank else len(values))
    smp.barrier()
    together = states(model, optimizer)
    on_first = len(model.state_dict(gather_to_rank0=True))
    train_step(model, *batch())  # messages of both kinds have met nobody else's
    optimizer.step()
    return smp.dp_rank(), together, on_first


@pytest.mark.parametrize("placement", ["cluster", "spread"])
def test_replica_of_dp_rank_0_gathers_alone_and_all_gather_together(world, tmp_path, placement):
    """Both find the same; a plain model and its optimizer load it."""
    path = tmp_path / "whole.pt"
    options = {"placement_strategy": placement}
    found = world.run(script, str(path), options, size=4, deadline=SECONDS)
    values, state = torch.load(path, weights_only=True)
    plain = net(tied=True, norm=nn.BatchNorm1d)
    optimizer = torch.optim.AdamW(plain.parameters())

    assert plain.state_dict().keys() == values.keys()
    plain.load_state_dict(values)
    optimizer.load_state_dict({k: v for k, v in state.items() if not k.startswith("_smp_")})
    for rank, (dp_rank, together, on_first) in enumerate(found):
        assert on_first == (0 if rank else len(values))
        assert same(together[1], state)
        assert same(together[0], values) == (dp_rank == 0)  # statistics are each replica's own
        assert same(parameters(together[0]), parameters(values))


def parameters(values):
    names = {name for name, _ in net(norm=nn.BatchNorm1d).named_parameters()}
    return {name: value for name, value in values.items() if name in names}


def same(one, other):
    """Return True if two states are equal, bit by bit."""
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(v, other[k]) for k, v in one.items())
    return torch.equal(one, other) if isinstance(one, torch.Tensor) else one == other


def foreign(rank, size):
    """A parameter of something else, in the second replica, on its second rank."""
    _model, optimizer = trained()
    if rank == 3:
        optimizer.add_param_group({"params": [nn.Parameter(torch.ones(1))]})
    try:
        return list(optimizer.state_dict())
    except smp.CheckpointError as error:
        return error.about, error.kind, error.ranks


def test_what_is_wrong_in_one_replica_is_told_there_by_ranks_of_the_world(world):
    found = world.run(foreign, size=4, deadline=SECONDS)

    assert found[0] == found[1]
    assert "state" in found[0]
    assert (("optimizer",), "unknown", (3,)) == found[2] == found[3]


def shared_out(rank, size):
    model, optimizer = trained(sharding="optimizer")
    return states(model, optimizer)


def test_replicas_that_share_values_out_gather_together(world):
    """Every rank of the world has the whole, shapes and all."""
    found = world.run(shared_out, size=4, deadline=SECONDS)
    expected = {k: v.shape for k, v in net(tied=True, norm=nn.BatchNorm1d).state_dict().items()}

    for values, state in found:
        assert expected == {name: value.shape for name, value in values.items()}
        assert same(found[0][0], values)
        assert same(found[0][1], state)
