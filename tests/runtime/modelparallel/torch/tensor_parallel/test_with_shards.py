# SPDX-License-Identifier: Apache-2.0
"""Layers that are split over ranks, with parameters or optimizer state sharded over replicas."""

import pytest
from tensor_models import alone, split, train, worst
from torch.distributed.tensor import DTensor

import smdist.modelparallel.torch as smp
from sagemaker_dist import ModelParallel


def start(degree, sharding, stages):
    smp.init(
        ModelParallel(
            tensor_parallel_degree=degree,
            pipeline_parallel_degree=stages,
            sharding=sharding,
            microbatches=2,
        )
    )


def trained(rank, size, name, sharding, stages):
    start(2, sharding, stages)
    model, optimizer = split(name)
    found = train(model, optimizer)
    return found, sum(isinstance(each, DTensor) for each in model.parameters())


@pytest.mark.parametrize(
    ("name", "sharding", "size", "stages"),
    [
        ("gpt2", "full", 4, 1),
        pytest.param("llama", "optimizer", 4, 1, marks=pytest.mark.slow),
        pytest.param("mlp", "full", 4, 1, marks=pytest.mark.slow),
        pytest.param("experts", "full", 4, 1, marks=pytest.mark.slow),
        pytest.param("gpt2", "optimizer", 8, 2, marks=pytest.mark.slow),
    ],
)
def test_gradients_losses_norms_and_weights_are_as_in_one_process(
    world, name, sharding, size, stages
):
    """Two replicas have a half of the batch each, and each a half of every part."""
    found = world.run(trained, name, sharding, stages, size=size, deadline=80)
    expected = alone(name)
    grads = {key: value for rank, _ in found for key, value in rank.grads.items()}
    means = [sum(each) / size for each in zip(*(rank.losses for rank, _ in found), strict=True)]

    assert worst({key: grads[key] for key in expected.grads}, expected.grads) < 1e-9
    assert expected.losses == pytest.approx(means, rel=1e-8)
    for rank, sharded in found:
        assert sharded > 0
        assert expected.norms == pytest.approx(rank.norms, rel=1e-8)
        assert worst(rank.state, expected.state) < 2e-8


def saved(rank, size, name, folder, layout, partial):
    start(*layout)
    model, optimizer = split(name, kind="adamw")
    train(model, optimizer, steps=2)
    smp.save_checkpoint(folder, tag="a", partial=partial, model=model, optimizer=optimizer)
    state, moments = model.state_dict(), optimizer.state_dict()
    on = train(model, optimizer, steps=2, first=2).losses
    model.load_state_dict(state)
    optimizer.load_state_dict(moments)
    return on, train(model, optimizer, steps=2, first=2).losses


def resumed(rank, size, name, folder, layout, partial):
    start(*layout)
    model, optimizer = split(name, kind="adamw")
    smp.resume_from_checkpoint(folder, tag="a", partial=partial)
    return train(model, optimizer, steps=2, first=2).losses


SHARDED, SPLIT, PLAIN = (2, "full", 1), (2, "none", 1), (1, "none", 1)


@pytest.mark.parametrize(
    ("before", "after", "partial"),
    [
        (SHARDED, SPLIT, True),
        pytest.param(SPLIT, SHARDED, True, marks=pytest.mark.slow),
        pytest.param(SHARDED, (2, "optimizer", 1), False, marks=pytest.mark.slow),
        pytest.param(PLAIN, SHARDED, False, marks=pytest.mark.slow),
        pytest.param(SHARDED, (1, "full", 2), True, marks=pytest.mark.slow),
    ],
)
def test_a_checkpoint_goes_on_under_another_layout(world, tmp_path, before, after, partial):
    """Layouts are tuples of tensor degree, sharding and stages, of four ranks each."""
    arguments = ("gpt2", str(tmp_path))
    out = world.run(saved, *arguments, before, partial, size=4, deadline=80)
    found = world.run(resumed, *arguments, after, partial, size=4, deadline=80)
    losses = [sum(each) / 4 for each in zip(*(on for on, _ in out), strict=True)]

    assert all(on == again for on, again in out)
    assert losses == pytest.approx([sum(each) / 4 for each in zip(*found, strict=True)], rel=1e-9)


def test_memory_of_a_rank_is_a_quarter(world):
    """Parameters of split layers are divided by the ranks that split, and then by the replicas."""
    found = world.run(elements, size=4, deadline=80)

    whole = sum(value.numel() for value in alone("mlp", steps=1).grads.values())
    assert all(each < 0.3 * whole for each in found)


def elements(rank, size):
    start(2, "full", 1)
    model, optimizer = split("mlp")
    train(model, optimizer, steps=1)
    local = (p.to_local() if isinstance(p, DTensor) else p for p in model.parameters())
    return sum(each.numel() for each in local)
