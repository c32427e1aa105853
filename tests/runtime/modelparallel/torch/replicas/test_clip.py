# SPDX-License-Identifier: Apache-2.0
"""The norm that gradients are clipped by is that of the whole model, as in one process."""

import gc
import math

import pytest
import tied
import torch
from replicated import Pipeline, Replicated, furthest, plain_step
from torch import nn
from torch.nn.utils import clip_grad_norm_ as imported_before

from smdist.modelparallel.torch.replicas import clip_grad_norm_

ORDERS = (2.0, 1.0, 3.0, 0.5, 0.0, math.inf, -math.inf)


def clipped(rank, size, sharding, orders):
    """For each order: norm here and in one process, and how far clipped gradients are apart."""
    torch.set_num_threads(1)
    whole, mine = tied.specimen(), Replicated(tied.specimen(), Pipeline(num_microbatches=2), size,
                                              sharding=sharding)  # fmt: skip
    found = []
    for order in orders:
        plain_step(whole, num_microbatches=4)
        expected = imported_before(whole.model.parameters(), 1e-2, order)
        mine.model.zero_grad()
        for stage in mine.stages.values():
            stage.zero_grad()
        mine.step()
        norm = imported_before(mine.replicas.parameters.values(), 1e-2, order)
        gradients = {name: p.grad for name, p in whole.model.named_parameters()}
        found.append((order, expected.item(), norm.item(), furthest(gradients, mine.gradients())))
    return found


@pytest.mark.parametrize("sharding", ["none", "optimizer"])
def test_norms_are_those_of_one_process(world, sharding):
    """Of every order; the function was imported before any model was split."""
    ranks = world.run(clipped, sharding, ORDERS, hosts="aabb", deadline=110)
    for order, expected, norm, (error, name) in (each for found in ranks for each in found):
        assert expected == pytest.approx(norm, rel=1e-6), order
        assert error < 1e-6, (order, name)
    for alike in zip(*ranks, strict=True):
        assert len({norm for _, _, norm, _ in alike}) == 1


def made(size):
    torch.set_num_threads(1)
    mine = Replicated(tied.specimen(), Pipeline(num_microbatches=2), size)
    mine.step()
    return mine


def on_one_stage_alone(rank, size):
    """Stage 1 has no gradients: once it passes its parameters, once nothing at all."""
    mine = made(size)
    parameters = list(mine.replicas.parameters.values())
    if mine.groups.pp_rank == 1:
        for parameter in parameters:
            parameter.grad = None
    mean = torch.nn.utils.get_total_norm([p.grad for p in parameters if p.grad is not None])
    first = clip_grad_norm_(parameters, 1e-3)
    second = clip_grad_norm_([] if mine.groups.pp_rank == 1 else parameters, 1.0)
    return mean.item(), first.item(), second.item()


def test_a_rank_without_gradients_takes_part(world):
    """Nobody waits for it."""
    found = world.run(on_one_stage_alone, hosts="aabb", deadline=30)

    assert 1 == len(set(found))
    for before, first, second in found:
        assert before == first
        assert second == pytest.approx(1e-3, rel=1e-3)


def not_a_number(rank, size):
    mine = made(size)
    if rank == 1:
        mine.replicas.parameters["norm.bias"].grad.fill_(math.nan)
    parameters = list(mine.replicas.parameters.values())
    norms = [clip_grad_norm_(parameters, math.inf, order).item() for order in (2.0, math.inf)]
    with pytest.raises(RuntimeError, match="is nan"):
        clip_grad_norm_(parameters, 1.0, error_if_nonfinite=True)
    return norms


def test_what_is_no_number_on_one_rank_is_none_on_all_of_its_pipeline(world):
    """With every norm; all of them raise together where that is asked for."""
    for norms in world.run(not_a_number, size=2, deadline=30):
        assert all(map(math.isnan, norms))


def others(rank, size):
    """Of another model, and of the same one after the split one is gone."""
    mine = made(size)
    lone = nn.Linear(2, 2)
    lone.weight.grad = torch.full((2, 2), float(rank + 1))
    norm = imported_before(lone.parameters(), 1.0).item()
    parameters = list(mine.replicas.parameters.values())
    local = math.hypot(*(p.grad.norm().item() for p in parameters))
    del mine
    gc.collect()
    return norm, imported_before(parameters, 1e9).item() - local


def test_gradients_of_other_models_are_left_to_torch(world):
    """Ranks have different ones there, and need not call at the same time."""
    for rank, (norm, rest) in enumerate(world.run(others, hosts="aabb", deadline=30)):
        assert norm == pytest.approx(2 * (rank + 1))
        assert rest == pytest.approx(0, abs=1e-6)


def with_a_loss_of_its_own(rank, size):
    """The last stage's rank has a gradient of a parameter that is in no stage."""
    mine, lone = made(size), nn.Parameter(torch.zeros(2))
    parameters = [*mine.replicas.parameters.values(), lone]
    without = clip_grad_norm_(parameters, 1e9).item()
    if mine.groups.pp_rank == mine.groups.pp_size - 1:
        lone.grad = torch.tensor([3.0, 4.0])
    return math.hypot(without, 5.0), clip_grad_norm_(parameters, 1e9).item()


def test_parameters_of_a_loss_function_count_where_losses_are(world):
    """Other ranks have no gradient of them."""
    for expected, norm in world.run(with_a_loss_of_its_own, size=2, deadline=30):
        assert expected == pytest.approx(norm, rel=1e-6)
