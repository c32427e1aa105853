# SPDX-License-Identifier: Apache-2.0
"""Checkpoints of float16 have float32 master weights and the loss scale, and go on bit for bit."""

from copy import deepcopy

import pytest
import torch
from half_training import DYNAMIC, batch, gpt, made, start, train, train_step

import smdist.modelparallel.torch as smp

RULES = {"init_scale": 2.0**10, "scale_window": 2}


def saved(rank, size, folder, degree, options):
    """Save after one step, partial and full, and return two more steps."""
    start(degree, **options)
    model, optimizer = made(**DYNAMIC, dynamic_loss_args=RULES)
    first = train(model, optimizer, 1)
    for partial in (True, False):
        smp.save_checkpoint(
            folder, tag=f"{partial}", partial=partial, model=model, optimizer=optimizer
        )
    return first.state, train(model, optimizer, 2, first=1)


def resumed(rank, size, folder, degree, options, partial):
    """Load before the first step, and return two steps."""
    start(degree, **options)
    model, optimizer = made(**DYNAMIC, dynamic_loss_args=RULES)
    smp.resume_from_checkpoint(folder, tag=f"{partial}", partial=partial)
    return train(model, optimizer, 2, first=1)


@pytest.mark.parametrize(
    ("before", "after", "options", "partial"),
    [
        pytest.param(2, 2, {}, True, marks=pytest.mark.slow),
        (2, 1, {}, False),
        (1, 1, {"sharding": "full"}, True),
        pytest.param(1, 2, {"tensor_parallel_degree": 2}, True, marks=pytest.mark.slow),
    ],
)
def test_training_goes_on_bit_for_bit(world, tmp_path, before, after, options, partial):
    """Also with other stages: the losses are the same, and so is the scale."""
    after_options = {} if after != before else options
    state, on = world.run(saved, str(tmp_path), before, options, size=2)[0]
    again = world.run(resumed, str(tmp_path), after, after_options, partial, size=2)[0]

    is_exact = "tensor_parallel_degree" not in options
    assert on.losses == pytest.approx(again.losses, abs=0 if is_exact else 4e-3)
    assert on.scales == again.scales == [2.0**11, 2.0**11]
    if is_exact:
        assert all(torch.equal(value, again.state[name]) for name, value in on.state.items())
    stored = torch.load(tmp_path / "False")["model"]
    assert all(torch.equal(value, stored[name]) for name, value in state.items())
    assert {torch.float32} == {value.dtype for value in stored.values()}
    assert any((v.half().float() != v).any() for v in stored.values())


def states(model, optimizer):
    """Return the states of a model and its optimizer."""
    return model.state_dict(), optimizer.state_dict()["state"]


def saved_in(rank, size, folder, options):
    """Save after a step in some precision, and return the states."""
    start(2, **options)
    model, optimizer = made(static_loss_scale=1.0)
    train(model, optimizer, 1)
    smp.save_checkpoint(folder, tag="a", model=model, optimizer=optimizer)
    return states(model, optimizer)


def loaded_in(rank, size, folder, options):
    """Load in another precision, and return the states."""
    start(2, **options)
    model, optimizer = made(static_loss_scale=1.0)
    smp.resume_from_checkpoint(folder, tag="a")
    with torch.no_grad():
        model(*batch(0)[:2])  # splits the model
    return states(model, optimizer)


@pytest.mark.parametrize("fp16", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_a_checkpoint_loads_in_the_other_precision(world, tmp_path, fp16):
    """With the values as they are."""
    one, moments = world.run(saved_in, str(tmp_path), {"fp16": fp16}, size=2)[0]
    other, loaded = world.run(loaded_in, str(tmp_path), {"fp16": not fp16}, size=2)[0]

    assert all(torch.equal(value, other[name]) for name, value in one.items())
    assert moments.keys() == loaded.keys()
    for number, state in moments.items():
        assert all(torch.equal(value, loaded[number][key]) for key, value in state.items())


def state_dicts(rank, size, whole):
    """Return state dicts after a step, and two more steps; also after loading them again."""
    start(2)
    model, optimizer = made(**DYNAMIC, dynamic_loss_args=RULES)
    train(model, optimizer, 1)
    parts = (model, optimizer)
    dicts = deepcopy([p.state_dict() if whole else p.local_state_dict() for p in parts])
    on = train(model, optimizer, 2, first=1)
    for part, values in zip(parts, dicts, strict=True):
        part.load_state_dict(values)
    return dicts, on, train(model, optimizer, 2, first=1)


def loaded_before(rank, size, dicts):
    """Load state dicts before the first step, and return two steps."""
    start(2)
    parts = made(**DYNAMIC, dynamic_loss_args=RULES)
    for part, values in zip(parts, dicts[rank], strict=True):
        part.load_state_dict(values)
    return train(*parts, 2, first=1)


@pytest.mark.parametrize("whole", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_state_dicts_go_on_bit_for_bit(world, whole):
    """Loaded into the same model, and before the first step of a new one."""
    found = world.run(state_dicts, whole, size=2)
    fresh = world.run(loaded_before, [dicts for dicts, _, _ in found], size=2)

    for (dicts, on, again), new in zip(found, fresh, strict=True):
        assert {"_smp_loss_scale", "_smp_master_weights"} <= set(dicts[1])
        for other in (again, new):
            assert (on.losses, on.scales) == (other.losses, other.scales)
            assert all(torch.equal(value, other.state[name]) for name, value in on.state.items())


def frozen(rank, size):
    """Freeze a part, train, unfreeze it, train; return dtypes of the state between and after."""
    start(2)
    raw = gpt()
    raw.words.requires_grad_(False)
    model = smp.DistributedModel(raw, trace_device="cpu")
    own = torch.optim.AdamW(model.parameters(), lr=0.01)
    optimizer = smp.DistributedOptimizer(own, static_loss_scale=2.0**10)
    between = train(model, optimizer, 1).state["words.weight"]
    raw.words.requires_grad_(True)
    train_step(model, *batch(1))
    optimizer.step()
    return between.dtype, model.state_dict()["words.weight"].dtype


def test_frozen_parameters_have_no_master_weights(world):
    """They take no more memory; one that is trained later gets its master weight then."""
    assert [(torch.float16, torch.float32)] * 2 == world.run(frozen, size=2)
