# SPDX-License-Identifier: Apache-2.0
"""Checkpoints of split layers load under any degree, and training goes on with the same numbers."""

import re

import pytest
import torch
from error_fields import fields_of
from tensor_models import (
    alone,
    batches,
    made,
    optimizer_of,
    split,
    start,
    train,
    train_step,
    worst,
)

import smdist.modelparallel.torch as smp
from sagemaker_dist.errors import OptionError


def saved(rank, size, name, folder, degree, partial, stages=1):
    start(degree, pipeline_parallel_degree=stages)
    model, optimizer = split(name, kind="adamw")
    train(model, optimizer, steps=2)
    smp.save_checkpoint(folder, tag="a", partial=partial, model=model, optimizer=optimizer)
    return train(model, optimizer, steps=2, first=2).losses


def resumed(rank, size, name, folder, degree, partial, stages=1):
    start(degree, pipeline_parallel_degree=stages)
    model, optimizer = split(name, kind="adamw")
    smp.resume_from_checkpoint(folder, tag="a", partial=partial)
    return train(model, optimizer, steps=2, first=2).losses


@pytest.mark.slow
@pytest.mark.parametrize(
    ("before", "after", "partial"), [(2, 1, True), (1, 2, True), (2, 2, False)]
)
def test_a_checkpoint_of_experts_goes_on_under_another_degree(
    world, tmp_path, before, after, partial
):
    """Its weights are split along each of three dimensions, also in two sections."""
    arguments = ("experts", str(tmp_path))
    losses = world.run(saved, *arguments, before, partial, size=before, deadline=80)
    found = world.run(resumed, *arguments, after, partial, size=after, deadline=80)

    assert losses[0] == pytest.approx(found[0], rel=1e-7)


@pytest.mark.parametrize(
    ("before", "after", "partial"),
    [
        (2, 1, False),
        (1, 2, True),
        (2, 2, True),
        pytest.param(2, 1, True, marks=pytest.mark.slow),
        pytest.param(1, 2, False, marks=pytest.mark.slow),
        pytest.param(2, 2, False, marks=pytest.mark.slow),
    ],
)
def test_a_checkpoint_goes_on_under_another_degree(world, tmp_path, before, after, partial):
    arguments = ("gpt2", str(tmp_path))
    losses = world.run(saved, *arguments, before, partial, size=before, deadline=80)
    found = world.run(resumed, *arguments, after, partial, size=after, deadline=80)

    assert losses[0] == pytest.approx(found[0], rel=1e-9)
    assert all(each == found[0] for each in found)


@pytest.mark.parametrize(
    ("before", "after", "partial"),
    [
        ((2, 2), (1, 1), True),
        pytest.param((2, 2), (2, 1), False, marks=pytest.mark.slow),
        pytest.param((2, 1), (2, 2), True, marks=pytest.mark.slow),
        pytest.param((1, 2), (2, 2), False, marks=pytest.mark.slow),
    ],
)
def test_a_checkpoint_goes_on_with_other_stages(world, tmp_path, before, after, partial):
    """Pairs are degrees of tensor and of pipeline parallelism."""

    def run(function, degrees):
        degree, stages = degrees
        arguments = ("gpt2", str(tmp_path), degree, partial, stages)
        return world.run(function, *arguments, size=degree * stages, deadline=80)

    losses = run(saved, before)
    found = run(resumed, after)

    assert losses[0] == pytest.approx(found[0], rel=1e-9)
    assert all(each == found[0] for each in found)


def test_a_full_checkpoint_loads_in_one_process(world, tmp_path):
    world.run(saved, "gpt2", str(tmp_path), 2, False, size=2, deadline=80)
    model = made("gpt2")
    stored = torch.load(tmp_path / "a")["model"]

    model.load_state_dict(stored)

    assert worst(stored, alone("gpt2", steps=2, kind="adamw").state) < 1e-7


def test_the_whole_model_is_read_from_the_parts_of_all_ranks(world, tmp_path):
    """Two stages of two parts each, read by one process without ranks."""
    world.run(saved, "gpt2", str(tmp_path), 2, True, 2, size=4, deadline=80)
    read = smp.sharded_data_parallel_checkpoint
    read = read.get_full_state_dict_from_sharded_data_parallel_checkpoint
    found = read(tmp_path, dtype=torch.float64)
    expected = alone("gpt2", steps=2, kind="adamw").state

    assert worst(found, expected) < 1e-7
    assert found["lm_head.weight"] is found["transformer.wte.weight"]
    assert {torch.float32} == {value.dtype for value in read(tmp_path, tag="a").values()}
    with pytest.raises(smp.NoCheckpointError):
        read(tmp_path / "other")


def states(rank, size, name):
    """Return the optimizer's and the model's whole state, and both loaded into a split model."""
    start(2)
    model, optimizer = split(name, kind="adamw")
    train(model, optimizer, steps=1)
    state, moments = model.state_dict(), optimizer.state_dict()
    on = train(model, optimizer, steps=1, first=1).losses
    model.load_state_dict(state)
    optimizer.load_state_dict(moments)
    again = train(model, optimizer, steps=1, first=1).losses
    shapes = {key: tuple(value.shape) for key, value in state.items()}
    return on, again, shapes, [each["exp_avg"].shape for each in moments["state"].values()]


def test_state_dicts_are_whole_and_load_again(world):
    on, again, shapes, moments = world.run(states, "gpt2", size=2, deadline=80)[0]
    plain = made("gpt2")
    expected = optimizer_of(plain, "adamw").param_groups[0]["params"]

    assert on == again
    assert shapes == {key: tuple(value.shape) for key, value in plain.state_dict().items()}
    assert [value.shape for value in expected] == moments


def other_data(rank, size, step):
    """Return the error's fields, and the position in its hint, if ranks have different batches."""
    start(2)
    model, _ = split("mlp")
    for ids in batches(step):
        train_step(model, ids)
    try:
        train_step(model, batches(2)[rank])
    except OptionError as error:
        return fields_of(error), re.findall(r"rank=smp\.(\w+)", error.hint)


@pytest.mark.parametrize("step", [0, 2])
def test_ranks_that_share_layers_need_the_same_batch(world, step):
    """In the first step, and in any later one: weights that stay whole would drift apart.

    The hint has a position that these ranks share; their `smp.dp_rank()` differ.
    """
    expected = [("ids", "data")], ["rdp_rank"]

    assert [expected] * 2 == world.run(other_data, step, size=2, deadline=80)


def meta(rank, size, degree):
    """Return the whole initial state of a model that was made without values."""
    start(degree)
    with smp.delay_param_initialization():
        model = made("mlp", torch.float32)
    model = smp.DistributedModel(model, trace_device="cpu")
    optimizer = smp.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.0))
    return train(model, optimizer, steps=1).state


def test_a_model_without_values_gets_those_of_whole_layers(world):
    whole = world.run(meta, 1, size=1, deadline=80)[0]
    parts = world.run(meta, 2, size=2, deadline=80)[0]

    assert all(torch.equal(whole[key], value) for key, value in parts.items())
    assert whole["up.weight"].std() > 0


def refused(rank, size, options):
    """Return the fields of the error of smp.init."""
    try:
        smp.init(options)
    except OptionError as error:
        return fields_of(error)


@pytest.mark.parametrize(
    ("options", "about", "kind"),
    [
        ({"tensor_parallel_degree": 3, "ddp": True}, "tensor_parallel_degree", "indivisible"),
        (
            {"tensor_parallel_degree": 2, "ddp": True, "pipeline_parallel_degree": 2},
            "pipeline_parallel_degree",
            "indivisible",
        ),
        (
            {"tensor_parallel_degree": 2, "ddp": True, "prescaled_batch": False},
            "prescaled_batch",
            "unsupported",
        ),
    ],
)
def test_what_is_not_there_is_refused_on_every_rank(world, options, about, kind):
    assert [[(about, kind)]] * 2 == world.run(refused, options, size=2, deadline=80)
