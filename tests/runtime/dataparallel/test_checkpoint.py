# SPDX-License-Identifier: Apache-2.0
"""torch.distributed.checkpoint on smdist: what is saved by some is loaded by others."""

import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    get_state_dict,
    set_model_state_dict,
    set_state_dict,
)
from torch.distributed.fsdp import fully_shard
from training import alone, are_close, net, train, weights


def sharded_with_adam():
    model = net()
    for layer in model:
        if isinstance(layer, nn.Linear):
            fully_shard(layer)
    fully_shard(model)
    return model, torch.optim.AdamW(model.parameters(), lr=0.01)


def document(model, optimizer):
    """Model and optimizer as DCP wants them, and something that is no tensor."""
    of_model, of_optimizer = get_state_dict(model, optimizer)
    return {"model": of_model, "optimizer": of_optimizer, "epoch": 3}


def whole(model):
    return [parameter.detach().full_tensor() for parameter in model.parameters()]


def save(rank, size, folder):
    """Train and save; then train on, as if nothing had been saved."""
    model, optimizer = sharded_with_adam()
    train(model, rank, size, optimizer)
    dcp.save(document(model, optimizer), checkpoint_id=folder)
    train(model, rank, size, optimizer)
    return whole(model)


def load(rank, size, folder):
    """Load into a fresh model on another number of ranks and train on."""
    model, optimizer = sharded_with_adam()
    read = document(model, optimizer)
    read["epoch"] = 0
    dcp.load(read, checkpoint_id=folder)
    set_state_dict(
        model,
        optimizer,
        model_state_dict=read["model"],
        optim_state_dict=read["optimizer"],
    )
    train(model, rank, size, optimizer)
    return read["epoch"], whole(model)


@pytest.mark.parametrize(
    ("savers", "loaders"),
    [
        pytest.param(4, 2, marks=pytest.mark.slow),
        (2, 3),
        pytest.param(3, 1, marks=pytest.mark.slow),
    ],
)
def test_ranks_of_another_number_go_on(world, tmp_path, savers, loaders):
    """Weights and moments are cut anew; training goes on as it would have."""
    folder = str(tmp_path / "checkpoint")
    expected = world.run(save, folder, size=savers)[0]

    for epoch, loaded in world.run(load, folder, size=loaders):
        assert 3 == epoch
        assert are_close(expected, loaded, atol=1e-5)


def save_in_background(rank, size, folder, has_group):
    """Train on while the checkpoint is written; give the weights of the moment of saving."""
    model = net()
    fully_shard(model)
    train(model, rank, size)
    saved = whole(model)
    group = dist.new_group() if has_group else None
    written = dcp.async_save(
        {"model": model.state_dict()}, checkpoint_id=folder, process_group=group
    )
    if has_group:
        train(model, rank, size)
    written.result()
    return saved, whole(model)


@pytest.mark.parametrize("has_group", [True, False])
def test_a_checkpoint_is_written_in_the_background(world, tmp_path, has_group):
    """In a group of its own beside training, or in the default group while nobody trains."""
    folder = str(tmp_path / "checkpoint")
    answers = world.run(save_in_background, folder, has_group, size=2)
    model = net()
    with pytest.warns(UserWarning, match="in a single process"):
        dcp.load({"model": model.state_dict()}, checkpoint_id=folder, no_dist=True)

    for saved, later in answers:
        assert are_close(weights(model), saved, atol=0)
        assert are_close(alone(), saved)
        assert has_group != are_close(saved, later)


def full_on_rank_0(rank, size):
    """One file's worth of state on one rank, and back to shards from there."""
    model, _ = sharded_with_adam()
    train(model, rank, size)
    gathered = get_model_state_dict(
        model, options=StateDictOptions(full_state_dict=True, cpu_offload=True)
    )
    fresh, _ = sharded_with_adam()
    set_model_state_dict(
        fresh, gathered, options=StateDictOptions(full_state_dict=True, broadcast_from_rank0=True)
    )
    return list(gathered), whole(model), whole(fresh)


def test_a_full_state_is_gathered_and_spread(world):
    """get_model_state_dict() to rank 0 alone; set_model_state_dict() broadcasts from it."""
    answers = world.run(full_on_rank_0, size=3)

    assert list(net().state_dict()) == answers[0][0]
    assert [[], []] == [names for names, _, _ in answers[1:]]
    for _, trained, spread in answers:
        assert are_close(trained, spread, atol=0)
