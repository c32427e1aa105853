# SPDX-License-Identifier: Apache-2.0
"""Two stages on two replicas leave the gradients of one process on the whole batch."""

import pytest
import torch
import zoo
from replicated import Pipeline, Replicated, furthest, plain_step

NAMES = ("gpt2", "mixtral", "resnet")
SHARDINGS = ("none", "optimizer", "full")


def errors(rank, size, name, schedule, options):
    """Of two steps without zero_grad, the second with gradients of the first."""
    torch.set_num_threads(1)
    pipeline = Pipeline(schedule=schedule, num_microbatches=2, **options.pop("pipeline", {}))
    expected = plain_step(zoo.tiny(name, rows=8, dropout=0.1), num_microbatches=4).gradients
    mine = Replicated(zoo.tiny(name, rows=8, dropout=0.1), pipeline, size, **options)
    mine.step()
    first = furthest(expected, mine.gradients())
    none = [n for n, g in mine.gradients().items() if (g is None) != (expected[n] is None)]
    mine.step()
    twice = {n: None if g is None else 2 * g for n, g in expected.items()}
    return first, furthest(twice, mine.gradients()), none


@pytest.mark.parametrize("sharding", SHARDINGS)
@pytest.mark.parametrize("schedule", ["1f1b", "zero_bubble"])
def test_two_stages_on_two_replicas(world, sharding, schedule):
    """Whatever replicas share out, and where the backward pass is in halves."""
    for first, second, none in world.run(errors, "gpt2", schedule, {"sharding": sharding}):
        assert first[0] < 1e-6, first
        assert second[0] < 1e-6, second
        assert not none
