# SPDX-License-Identifier: Apache-2.0
"""The models that a split is tried on train, and are the same every time."""

import pytest
import torch
import zoo

BILLIONS = {"llama70b": 69, "gpt3_175b": 175}


@pytest.mark.parametrize("name", zoo.TEN)
def test_models_train(name):
    """A backward pass reaches most parameters, and every gradient is finite."""
    specimen = zoo.tiny(name)
    specimen.loss().backward()
    gradients = [parameter.grad for parameter in specimen.model.parameters()]
    reached = [gradient for gradient in gradients if gradient is not None]

    assert len(reached) >= 0.7 * len(gradients)
    assert all(gradient.isfinite().all() for gradient in reached)


@pytest.mark.parametrize("name", zoo.TEN)
def test_models_are_the_same_every_time(name):
    """Two of one name have equal weights and batches, and the caller's random numbers go on."""
    before = torch.random.get_rng_state()
    first, second = zoo.tiny(name).loss(), zoo.tiny(name).loss()

    assert first.item() == second.item()
    assert torch.equal(before, torch.random.get_rng_state())


@pytest.mark.parametrize(
    "name", [*zoo.BIG[:1], *(pytest.param(name, marks=pytest.mark.slow) for name in zoo.BIG[1:])]
)
def test_big_models_take_no_memory(name):
    """Big models are on the meta device and have as many parameters as their names say."""
    with torch.device("meta"):
        model = zoo.large(name).model
    count = sum(parameter.numel() for parameter in model.parameters())

    assert all(tensor.is_meta for tensor in [*model.parameters(), *model.buffers()])
    assert BILLIONS[name] == round(count / 1e9)
