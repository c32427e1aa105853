# SPDX-License-Identifier: Apache-2.0
"""The sampler of elastic training: every sample once, whatever the worlds of an epoch."""

import pytest

from sagemaker_dist.errors import OptionError
from smdist.elastic import ElasticSampler


def world(size, length, **how):
    samplers = [ElasticSampler(length, **how) for _ in range(size)]
    for rank, sampler in enumerate(samplers):
        sampler.set_world(rank, size)
    return samplers


def take(samplers, steps, batch):
    """Make some steps on every rank, and return the samples that were processed."""
    seen = []
    for sampler in samplers:
        rest = list(sampler)
        seen += rest[: steps * batch]
        for _ in range(steps):
            sampler.record(batch)
    return seen


def test_ranks_divide_an_epoch():
    seen = take(world(3, 12), 2, 2)

    assert list(range(12)) == sorted(seen)


def test_a_smaller_world_goes_on_with_what_nobody_has_processed():
    three = world(3, 60)
    first = take(three, 4, 2)
    two = world(2, 60)
    for sampler in two:
        sampler.load_state_dict(three[0].state_dict())
    second = take(two, 9, 2)

    assert 24 == len(first)
    assert list(range(60)) == sorted(first + second)
    assert [0, 0] == [len(sampler) for sampler in two]


def test_what_cannot_be_divided_is_filled_up_with_the_first_samples():
    """Fewer samples are repeated than there are ranks."""
    samplers = world(4, 10, shuffle=False)
    seen = [list(sampler) for sampler in samplers]

    assert [[0, 4, 8], [1, 5, 9], [2, 6, 0], [3, 7, 1]] == seen
    assert [3, 3, 3, 3] == [len(sampler) for sampler in samplers]


def test_more_ranks_than_samples():
    seen = [list(sampler) for sampler in world(5, 2, shuffle=False)]

    assert [[0], [1], [0], [1], [0]] == seen


def test_drop_last_leaves_the_rest_out():
    samplers = world(4, 10, shuffle=False, drop_last=True)

    assert [[0, 4], [1, 5], [2, 6], [3, 7]] == [list(sampler) for sampler in samplers]
    assert [2, 2, 2, 2] == [len(sampler) for sampler in samplers]


def test_each_epoch_has_an_order_of_its_own_that_the_seed_decides():
    one, other = ElasticSampler(50, seed=1), ElasticSampler(50, seed=1)
    first = list(one)
    one.set_epoch(1)

    assert first == list(other)
    assert first != list(one)
    assert sorted(first) == sorted(one)
    assert first != list(ElasticSampler(50, seed=2))


def test_the_same_epoch_begun_again_keeps_its_position():
    sampler = ElasticSampler(10, shuffle=False)
    sampler.record(4)
    sampler.set_epoch(0)

    assert [4, 5, 6, 7, 8, 9] == list(sampler)

    sampler.set_epoch(1)

    assert 10 == len(list(sampler))


def test_an_empty_dataset_is_refused():
    with pytest.raises(OptionError) as caught:
        ElasticSampler([])
    assert ("data",) == caught.value.about
