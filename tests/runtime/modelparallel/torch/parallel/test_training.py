# SPDX-License-Identifier: Apache-2.0
"""A training loop by SMP's names gives the numbers of the same loop in one process."""

from dataclasses import replace

import pytest
from smp_loops import Loop, plain_loop, split_loop, worst

LOOP = Loop(accumulate=2, max_norm=0.5)
DROPPED = Loop(dropout=0.1, steps=2)
LAYOUTS = [(1, 1), (2, 2), (4, 4), (4, 2)]  # ranks, stages


def trained(rank, size, loop, degree):
    return split_loop(loop, degree)


@pytest.fixture(scope="module")
def plain():
    return plain_loop(LOOP)


@pytest.mark.parametrize(("size", "degree"), LAYOUTS)
def test_optimizer_scheduler_clipping_accumulation_and_evaluation_are_as_in_one_process(
    world, plain, size, degree
):
    per_replica = replace(LOOP, microbatches=LOOP.microbatches // (size // degree))
    found = world.run(trained, per_replica, degree, size=size)

    replicas = [each.losses for each in found[:: 1 if size == degree else 2]]
    means = [sum(losses) / len(losses) for losses in zip(*replicas, strict=True)]
    assert plain.losses == pytest.approx(means, abs=1e-5)
    assert plain.norms == pytest.approx(found[0].norms, rel=1e-5)
    assert worst(found[0].state, plain.state) < 1e-3  # Adam divides by gradients near 0
    assert all(each.norms == found[0].norms for each in found)
    if size == degree:
        assert plain.evaluations == pytest.approx(found[0].evaluations, abs=1e-5)
        assert all(each.evaluations == found[0].evaluations for each in found)
        assert all(each.losses == found[0].losses for each in found)


def test_dropout_is_the_same_under_every_layout(world):
    plain = plain_loop(DROPPED)
    found = [world.run(trained, DROPPED, size, size=size)[0] for size in (1, 2, 4)]

    for each in found:
        assert plain.losses == pytest.approx(each.losses, abs=1e-5)
        assert plain.evaluations == pytest.approx(each.evaluations, abs=1e-5)
