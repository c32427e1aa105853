# SPDX-License-Identifier: Apache-2.0
"""Batches of other lengths and sizes, and other modes: the same stages serve them."""

import pytest
import torch
import zoo
from splitting import Pipeline, Split, merged, parts_of, plain_step
from torch import nn

from sagemaker_dist.errors import OptionError
from smdist.modelparallel.core.placement import place
from smdist.modelparallel.torch.capture import capture
from smdist.modelparallel.torch.materialization.stage_module import StageModule
from smdist.modelparallel.torch.verification.compare import worst

PIPELINE = Pipeline(schedule="interleaved_1f1b", virtual_stages=2)
SHAPES = ((8, 12), (8, 7), (4, 12), (8, 12))  # rows, length


def test_lengths_and_rows_vary(world):
    found = world.run(varying, size=2, deadline=120)

    for number, shape in enumerate(SHAPES):
        expected = plain_step(specimen(shape), PIPELINE.num_microbatches)
        ran = merged([rank[number] for rank in found])

        assert worst(expected.gradients, ran.gradients).error <= 1e-6
        assert len(expected.losses) == len(ran.losses)


def test_training_and_evaluation_take_turns(world):
    """Dropout is off in the one, and on again in the other."""
    expected = plain_step(specimen(SHAPES[0]), PIPELINE.num_microbatches)
    quiet = specimen(SHAPES[0])
    quiet.model.eval()
    silent = plain_step(quiet, PIPELINE.num_microbatches)
    found = world.run(alternating, size=2, deadline=120)
    evaluated = next(rank[0] for rank in found if rank[0] is not None)

    assert [a.item() for a in silent.losses] == pytest.approx([a.item() for a in evaluated])
    assert worst(expected.gradients, merged([rank[1] for rank in found]).gradients).error <= 1e-6


class Branching(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second, self.extra = (nn.Linear(4, 4) for _ in range(3))
        self.scale = nn.Parameter(torch.ones(()))

    def forward(self, x):
        y = self.second(self.first(x))
        return y if self.training else self.extra(y) * self.scale


def test_modules_that_a_stage_does_not_have_are_named():
    model, batch = Branching(), (torch.randn(2, 4),)
    captured = capture(model, batch)
    placement = place(captured.graph, {"first": 0, "second": 1})
    stage = StageModule(captured, placement, 1)
    model.eval()
    other = capture(model, batch)
    placement = place(other.graph, {"first": 0, "second": 1, "extra": 1})

    with pytest.raises(OptionError) as told:
        stage.serve(other, placement)
    assert [(("extra",), "missing"), (("scale",), "missing")] == [
        (fault.about, fault.kind) for fault in told.value.faults
    ]
    assert (
        "the model now calls 'extra': this stage was created for an earlier forward pass, which"
        " called only the modules 'second' on this stage. Plan with an example and in a mode (train"
        " or eval) in which all modules are called." == str(told.value.faults[0])
    )


def specimen(shape):
    rows, length = shape
    found = zoo.tiny("gpt2", rows=rows, dropout=0.1)
    batch = {name: tensor[:, :length].contiguous() for name, tensor in found.batch.items()}
    return zoo.Specimen(model=found.model, batch=batch)


def varying(rank, size):
    torch.set_num_threads(1)
    split = Split(specimen(SHAPES[0]), PIPELINE)
    ran = [split.step()]
    for shape in SHAPES[1:]:
        split.adopt(parts_of(specimen(shape), PIPELINE.num_microbatches))
        ran.append(split.step())
    return ran


def alternating(rank, size):
    torch.set_num_threads(1)
    split = Split(specimen(SHAPES[0]), PIPELINE)
    split.specimen.model.eval()
    split.adopt(split.parts)
    with torch.no_grad():
        losses = split.step(backward=False).losses
    split.specimen.model.train()
    split.adopt(split.parts)
    return losses, split.step()
