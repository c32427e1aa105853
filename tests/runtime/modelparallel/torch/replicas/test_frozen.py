# SPDX-License-Identifier: Apache-2.0
"""Parameters are frozen and trained again between steps; a rank may have nothing to train."""

import pytest
import tied
import torch
from replicated import Pipeline, Replicated, furthest, plain_step

from smdist.modelparallel.torch.replicas import clip_grad_norm_

FROZEN = ("first.weight", "norm.weight")  # one on both ranks of a pipeline, one on the last


def made(size, frozen, **options):
    torch.set_num_threads(1)
    specimen = tied.specimen()
    for name, parameter in specimen.model.named_parameters():
        parameter.requires_grad_(not name.startswith(frozen))
    return Replicated(specimen, Pipeline(num_microbatches=2), size, **options)


def train_all(mine):
    for stage in mine.stages.values():
        stage.requires_grad_(True)


def trained_again(rank, size, sharding):
    """Gradients of a step with frozen parameters, then of one without; the norm of the latter."""
    mine = made(size, FROZEN, sharding=sharding)
    mine.step()
    before = set(mine.gradients())
    train_all(mine)
    for parameter in mine.replicas.held.values():
        parameter.grad = None
    mine.step()
    after = mine.gradients()
    norm = clip_grad_norm_(list(mine.replicas.held.values()), 1e9)
    expected = plain_step(tied.specimen(), 4).gradients
    return before & set(FROZEN), set(after), furthest(expected, after), norm.item()


@pytest.mark.parametrize("sharding", ["none", "full"])
def test_what_is_trained_again_has_means_and_sums(world, sharding):
    """On replicas, over the holders of a tie, and in the norm."""
    gradients = [g for g in plain_step(tied.specimen(), 4).gradients.values() if g is not None]
    expected = torch.nn.utils.get_total_norm(gradients).item()

    for frozen, names, (error, name), norm in world.run(trained_again, sharding, hosts="aabb"):
        assert set() == frozen
        assert "first.weight" in names
        assert error < 1e-6, name
        assert expected == pytest.approx(norm, rel=1e-6)


def trained_amid_a_series(rank, size):
    """Between two passes whose gradients are reduced together."""
    mine = made(size, FROZEN)
    mine.replicas.begin()
    train_all(mine)
    mine.run()
    mine.replicas.finish()
    found = mine.gradients()
    return "first.weight" in found, furthest(plain_step(tied.specimen(), 4).gradients, found)


def test_what_is_trained_again_amid_a_series_is_reduced_with_it(world):
    """Reductions are chosen when the first of them starts."""
    for is_known, (error, name) in world.run(trained_amid_a_series, hosts="aabb"):
        assert is_known
        assert error < 1e-6, name


def kept(rank, size):
    """What a parameter had when it was frozen, before a step and after it."""
    mine = made(size, ())
    mine.step()
    frozen = {n: p for n, p in mine.replicas.held.items() if n in FROZEN}
    before = {name: parameter.grad.clone() for name, parameter in frozen.items()}
    for parameter in frozen.values():
        parameter.requires_grad_(False)
    mine.step()
    return all(torch.equal(before[name], p.grad) for name, p in frozen.items())


def test_what_is_frozen_keeps_its_gradient(world):
    """As in one process."""
    assert [True] * 4 == world.run(kept, hosts="aabb")


FIRST_STAGE = ("first", "layers.0", "layers.1")  # all of it but the tied weight, which is frozen


def nothing_to_train(rank, size):
    """Norms with all parameters, with the trained ones, and with those beside another model."""
    mine = made(size, FIRST_STAGE)
    mine.step()
    every, trained = list(mine.replicas.held.values()), list(mine.replicas.parameters.values())
    norms = [clip_grad_norm_(each, 1e9).item() for each in (every, trained)]
    second = made(size, FIRST_STAGE)
    second.step()
    norms.append(clip_grad_norm_(list(second.replicas.parameters.values()), 1e9).item())
    mine.step()
    return len(trained), norms


def test_a_stage_on_which_all_is_frozen_takes_part_in_clipping(world):
    """With parameters that are all frozen, and with none, of the model that was cut last."""
    found = world.run(nothing_to_train, size=2, deadline=30)

    assert 0 == min(count for count, _ in found)
    assert found[0][1] == found[1][1]
    assert 1 == len({round(norm, 5) for norm in found[0][1]})
    assert found[0][1][0] > 0
