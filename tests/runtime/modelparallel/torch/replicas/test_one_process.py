# SPDX-License-Identifier: Apache-2.0
"""Two pipeline ranks in two replicas leave the gradients of one process on the whole batch."""

import pytest
import tied
import torch
import zoo
from replicated import Pipeline, Replicated, furthest, plain_step

SHARDINGS = (
    {"sharding": "none"},
    {"sharding": "optimizer"},
    {"sharding": "full"},
    {"sharding": "full", "shard_degree": 1},  # two copies of one shard each
)
SCHEDULES = {"simple": 1, "1f1b": 1, "zero_bubble": 1, "interleaved_1f1b": 2, "zero_bubble_v": 2}


def made(name):
    return tied.specimen() if name == "tied" else zoo.tiny(name, rows=8, dropout=0.1)


def errors(rank, size, names, schedules, options):
    """Of two steps without zero_grad, the second with gradients of the first."""
    torch.set_num_threads(1)
    return [
        found
        for name in names
        for schedule, virtual in schedules.items()
        for found in _errors(size, name, schedule, virtual, options)
    ]


def _errors(size, name, schedule, virtual, options):
    pipeline = Pipeline(schedule=schedule, num_microbatches=2, virtual_stages=virtual)
    expected = plain_step(made(name), num_microbatches=4).gradients
    mine = Replicated(made(name), pipeline, size, **options)
    for number in (1, 2):
        mine.step()
        found = mine.gradients()
        wanted = {n: g if g is None else number * g for n, g in expected.items()}
        lost = [n for n, g in found.items() if (g is None) != (wanted[n] is None)]
        yield schedule, *furthest(wanted, found), lost


@pytest.mark.parametrize("options", SHARDINGS, ids=str)
def test_every_kind_of_schedule(world, options):
    """A tie, whatever replicas share out, backward passes in halves, several stages a rank."""
    for found in world.run(errors, ["tied"], SCHEDULES, options, hosts="aabb"):
        for schedule, error, name, lost in found:
            assert error < 1e-6, (schedule, name)
            assert not lost


@pytest.mark.parametrize("sharding", ["none", "full"])
def test_models_of_the_zoo(world, sharding):
    """With dropout; experts that see other tokens on each replica."""
    names, schedule = ["gpt2", "mixtral"], {"1f1b": 1}
    for found in world.run(errors, names, schedule, {"sharding": sharding}, hosts="aabb"):
        for _, error, name, lost in found:
            assert error < 1e-6, name
            assert not lost
