# SPDX-License-Identifier: Apache-2.0
"""Layers that are split over ranks in a model that is split into stages, on 4 and on 8 ranks."""

import pytest
from tensor_models import alone, split, train, worst

import smdist.modelparallel.torch as smp
from sagemaker_dist import ModelParallel

STAGES = 2


def trained(rank, size, name, degree, pipeline):
    degrees = {"tensor_parallel_degree": degree, "pipeline_parallel_degree": STAGES}
    smp.init(ModelParallel(**degrees, pipeline=pipeline, microbatches=4))
    return train(*split(name))


@pytest.mark.parametrize(
    ("name", "pipeline", "size"),
    [
        ("gpt2", "interleaved", 4),
        ("llama", "zero_bubble", 4),
        ("written", "interleaved_1f1b", 4),
        pytest.param("mlp", "1f1b", 4, marks=pytest.mark.slow),
        pytest.param("mlp", "interleaved_1f1b", 4, marks=pytest.mark.slow),
        pytest.param("gpt2", "zero_bubble_v", 4, marks=pytest.mark.slow),
        pytest.param("llama", "interleaved", 8, marks=pytest.mark.slow),
        pytest.param("encoder", "1f1b", 4, marks=pytest.mark.slow),
        pytest.param("experts", "zero_bubble", 4, marks=pytest.mark.slow),
    ],
)
def test_gradients_losses_norms_and_weights_are_as_in_one_process(world, name, pipeline, size):
    """The two replicas of 8 ranks have a half of the batch each."""
    found = world.run(trained, name, 2, pipeline, size=size, deadline=80)
    expected, replicas = alone(name), size // (2 * STAGES)
    grads = {key: value for rank in found for key, value in rank.grads.items()}
    means = [sum(each) / size for each in zip(*(rank.losses for rank in found), strict=True)]

    assert expected.grads.keys() <= grads.keys()
    assert worst({key: grads[key] for key in expected.grads}, expected.grads) < 1e-9
    assert expected.losses == pytest.approx(means, rel=1e-8)
    assert replicas == len({tuple(rank.losses) for rank in found})
    for rank in found:
        assert expected.norms == pytest.approx(rank.norms, rel=1e-8)
        assert worst(rank.state, expected.state) < 2e-8
        assert rank.num_elements < 0.6 * sum(value.numel() for value in expected.grads.values())
