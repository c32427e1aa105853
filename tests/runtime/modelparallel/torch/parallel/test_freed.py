# SPDX-License-Identifier: Apache-2.0
"""What a step made is freed when it ends: tensors and the graph of gradients."""

import gc
from weakref import WeakSet

import pytest
import torch
from torch import nn

LAYOUTS = [
    (1, {"pipeline_parallel_degree": 1}),
    (2, {"pipeline": "interleaved"}),
    (2, {"pipeline": "1f1b"}),
    (2, {"pipeline": "zero_bubble_v", "virtual_stages": 2}),
    (4, {"pipeline": "1f1b", "pipeline_parallel_degree": 2, "sharding": "full"}),
]


ALIVE = WeakSet()


class Note:
    """Lives as long as the node of the graph that it is attached to."""

    def __init__(self):
        ALIVE.add(self)


class Noted(torch.autograd.Function):
    """Returns what it is given."""

    @staticmethod
    def forward(ctx, x):
        ctx.note = Note()
        return x * 1.0

    @staticmethod
    def backward(ctx, gradient):
        return gradient


class Layer(nn.Linear):
    """Has a node in the graph that is known to be there or gone."""

    def forward(self, x):
        return Noted.apply(super().forward(x))


def left(work):
    """Notes that outlive a call, without the help of a collector of cycles."""
    gc.collect()
    gc.disable()
    try:
        before = set(map(id, ALIVE))
        work()
        return sum(id(note) not in before for note in ALIVE)
    finally:
        gc.enable()


def left_by_all(rank, size, options):
    import smdist.modelparallel.torch as smp
    from sagemaker_dist import ModelParallel
    from smdist.modelparallel.torch import session

    torch.set_num_threads(1)
    options = {"pipeline_parallel_degree": size, "microbatches": 4} | options
    smp.init(ModelParallel(**options))
    try:
        torch.manual_seed(0)
        model = smp.DistributedModel(nn.Sequential(*[Layer(8, 8) for _ in range(8)]))
        x = torch.ones(8, 8)

        @smp.step
        def step(model, x):
            loss = model(x).square().mean()
            model.backward(loss)
            return loss

        def outside():
            with torch.no_grad():
                model(x)
            if options["pipeline_parallel_degree"] == 1:
                model.backward(model(x).square().mean())

        calls = {
            "a step": lambda: step(model, x),
            "train_step": lambda: model.train_step(x, torch.Tensor.mean),
            "evaluate": lambda: model.evaluate(x, torch.Tensor.mean),
            "outside": outside,
        }
        for call in calls.values():
            call()
        return {name: left(call) for name, call in calls.items()}
    finally:
        session.end()


@pytest.mark.parametrize(("size", "options"), LAYOUTS)
def test_nothing_of_a_step_is_left(world, size, options):
    """A hook on what the model returned once held all of it: 64 MB more after each step."""
    found = world.run(left_by_all, options, size=size)

    nothing = {"a step": 0, "train_step": 0, "evaluate": 0, "outside": 0}
    assert [nothing] * size == found


def test_notes_are_counted():
    """One that is held is found."""
    held = []

    def work():
        held.append(Layer(2, 2)(torch.ones(2, 2)))

    assert 1 == left(work)
