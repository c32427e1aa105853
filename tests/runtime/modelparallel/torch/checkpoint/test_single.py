# SPDX-License-Identifier: Apache-2.0
"""smp.save and smp.load: a file for each rank of a pipeline, written by the first replica."""

import pytest
import torch
from checkpoints import make, running

from smdist.modelparallel.torch.checkpoint import (
    CheckpointError,
    load,
    resume_from_checkpoint,
    save,
    save_checkpoint,
)


def save_and_load(rank, size, folder):
    with running("two_by_two", seed=0, cuts=False):
        save({"rank": rank}, f"{folder}/part.pt")
        save({"rank": rank}, f"{folder}/whole.pt", partial=False)
        torch.distributed.barrier()
        found = load(f"{folder}/part.pt"), load(f"{folder}/whole.pt", partial=False)
        try:
            load(f"{folder}/wrong.pt")
        except CheckpointError as error:
            return *found, (error.about, error.kind)


def test_each_rank_of_the_pipeline_has_its_file(world, tmp_path):
    """Replicas load what the first one wrote; rank 0 alone writes the whole."""
    found = world.run(save_and_load, str(tmp_path))

    assert ["part.pt_0", "part.pt_1", "whole.pt"] == sorted(f.name for f in tmp_path.iterdir())
    for rank, (part, whole, told) in enumerate(found):
        assert ({"rank": rank % 2}, {"rank": 0}) == (part, whole)
        assert (("f",), "missing") == told


def scripts_own(rank, size, folder):
    """Neither model nor optimizer are named; the resumption is before the first step."""
    with running("two", seed=0) as run:
        run.steps(2)
        save_checkpoint(folder, tag="a", user_content=rank)
        expected = run.steps(2)
        run.data.step = 2
    del run
    with running("two", seed=1, cuts=False) as run:
        content = resume_from_checkpoint(folder)
        run.data.step = 2
        for _ in range(2):
            run.scheduler.step()
        return expected, run.steps(2), content


def test_the_scripts_own_model_and_optimizer_are_the_default(world, tmp_path):
    """The user content is rank 0's everywhere."""
    for expected, found, content in world.run(scripts_own, str(tmp_path), size=2):
        assert expected == pytest.approx(found, abs=1e-6)
        assert 0 == content


@pytest.mark.parametrize("kind", [torch.optim.SGD, torch.optim.AdamW])
@pytest.mark.parametrize("partial", [True, False])
def test_state_that_is_not_there_yet_stays_away(tmp_path, kind, partial):
    """Parameters that were never stepped have no state afterwards, those that were have theirs."""
    options = {"momentum": 0.9} if kind is torch.optim.SGD else {}
    model, _, _ = make(0)
    optimizer = kind(model.parameters(), lr=0.1, **options)
    model.spare.square().sum().backward()
    optimizer.step()
    save_checkpoint(tmp_path, 1, partial, model, optimizer)
    other, _, _ = make(1)
    new = kind(other.parameters(), lr=0.7, **options)
    other.embed.weight.sum().backward()
    new.step()
    resume_from_checkpoint(tmp_path, partial=partial, model=other, optimizer=new)

    assert [other.spare] == list(new.state)
    for key, value in optimizer.state[model.spare].items():
        assert torch.equal(value, new.state[other.spare][key])
    assert 0.1 == new.param_groups[0]["lr"]


@pytest.mark.parametrize("partial", [True, False])
def test_lower_precision_survives_bit_by_bit(tmp_path, partial):
    """bfloat16 parameters with float32 state, which PyTorch's own loading would round."""
    model = torch.nn.Linear(3, 3).bfloat16()
    optimizer = torch.optim.SGD(model.parameters(), momentum=0.9)
    optimizer.state[model.weight] = {"momentum_buffer": torch.rand(3, 3)}
    save_checkpoint(tmp_path, 1, partial, model, optimizer)
    other = torch.nn.Linear(3, 3).bfloat16()
    new = torch.optim.SGD(other.parameters(), momentum=0.9)
    resume_from_checkpoint(tmp_path, partial=partial, model=other, optimizer=new)
    buffer = new.state[other.weight]["momentum_buffer"]

    assert torch.equal(model.weight, other.weight)
    assert torch.equal(optimizer.state[model.weight]["momentum_buffer"], buffer)


def test_translate_function_gives_other_names(tmp_path):
    """A file of another script's model."""
    model = torch.nn.Linear(3, 3)
    save_checkpoint(tmp_path, 1, False, model)
    other = torch.nn.Sequential(torch.nn.Linear(3, 3))

    def translate(state):
        return {f"0.{name}": value for name, value in state.items()}

    resume_from_checkpoint(tmp_path, partial=False, translate_function=translate, model=other)

    assert torch.equal(model.weight, other[0].weight)
