# SPDX-License-Identifier: Apache-2.0
"""A model over several processes has the gradients that it has in one."""

import pytest
import torch
import zoo
from splitting import Pipeline, Split, merged, plain_step

from smdist.modelparallel.torch.verification.compare import worst

TOLERANCE = 1e-6
ROWS, MICROBATCHES = 8, 4
TWO = (
    Pipeline(schedule="simple"),
    Pipeline(schedule="interleaved"),
    Pipeline(schedule="1f1b"),
    Pipeline(schedule="zero_bubble"),
    Pipeline(schedule="interleaved_1f1b", virtual_stages=2),
    Pipeline(schedule="looped_bfs", virtual_stages=2),
    Pipeline(schedule="zero_bubble_v", virtual_stages=2),
    Pipeline(schedule="dualpipe_v", virtual_stages=2),
)


@pytest.mark.parametrize("name", ["gpt2", pytest.param("unet", marks=pytest.mark.slow)])
def test_under_every_schedule(world, name):
    """Tied weights, and skips that several stages read; dropout draws what it draws in one."""
    expected = plain(name)
    found = world.run(every_schedule, name, TWO, size=2, deadline=120)

    for number, pipeline in enumerate(TWO):
        check(expected, merged([rank[number] for rank in found]), pipeline)


@pytest.mark.parametrize("name", zoo.TEN)
def test_every_model_over_three_ranks(world, name):
    pipeline = Pipeline(schedule="interleaved", num_ranks=3, num_microbatches=MICROBATCHES)
    found = world.run(every_schedule, name, (pipeline,), size=3, deadline=120)

    check(plain(name), merged([rank[0] for rank in found]), pipeline)


@pytest.mark.parametrize("name", ["t5", "whisper"])
def test_over_four_ranks_of_two_hosts(world, name):
    """Encoders that later stages read again."""
    pipeline = Pipeline(schedule="1f1b", num_ranks=4, num_microbatches=MICROBATCHES)
    found = world.run(every_schedule, name, (pipeline,), hosts="aabb", deadline=120)

    check(plain(name), merged([rank[0] for rank in found]), pipeline)


def test_one_rank_is_a_pipeline_too(world):
    pipeline = Pipeline(schedule="1f1b", num_ranks=1, num_microbatches=MICROBATCHES)
    found = world.run(every_schedule, "gpt2", (pipeline,), size=1, deadline=120)

    check(plain("gpt2"), found[0][0], pipeline)


def plain(name):
    return plain_step(specimen(name), MICROBATCHES)


def specimen(name):
    return zoo.tiny(name, rows=ROWS, dropout=0.1)


def check(expected, found, pipeline):
    gradients = worst(expected.gradients, found.gradients)
    buffers = worst(expected.buffers, found.buffers)
    losses = worst(dict(enumerate(expected.losses)), dict(enumerate(found.losses)))

    assert gradients.error <= TOLERANCE, (pipeline, gradients)
    assert losses.error <= TOLERANCE, (pipeline, losses)
    assert buffers.error <= TOLERANCE, (pipeline, buffers)


def every_schedule(rank, size, name, pipelines):
    torch.set_num_threads(1)
    return [Split(specimen(name), pipeline).step() for pipeline in pipelines]
