# SPDX-License-Identifier: Apache-2.0
"""What a rank holds does not grow with the number of microbatches, and nothing outlives a step."""

import gc
import time
import weakref

import pytest
import torch
import torch.distributed as dist
import zoo
from splitting import Pipeline, Split
from torch import nn

from smdist.modelparallel.core.schedule import make_schedule
from smdist.modelparallel.core.schedule.in_flight import peak_in_flight

WIDTH = 64
ROW_BYTES = 2 * WIDTH * 4  # two samples a microbatch


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(4))

    def forward(self, x):
        for layer in self.layers:
            x = layer(x).tanh()
        return x


@pytest.mark.parametrize("backend", ["smdist", "gloo"])
@pytest.mark.parametrize("schedule", ["1f1b", "zero_bubble"])
def test_buffers_do_not_grow_with_microbatches(world, schedule, backend):
    """Those of this action and the next: values of two or gradients of two, with flags."""
    few = world.run(peaks, schedule, 4, backend, size=2, deadline=120)
    many = world.run(peaks, schedule, 32, backend, size=2, deadline=120)

    for rank in range(2):
        assert few[rank]["receive"] == many[rank]["receive"]
        assert 0 < few[rank]["receive"] <= 2 * (ROW_BYTES + 1)
        assert many[rank]["send"] <= 8 * ROW_BYTES
        assert (0, 0, 0) == many[rank]["now"]
    held = peak_in_flight(make_schedule(schedule, num_ranks=2, num_microbatches=32))

    assert list(held) == [rank["held"] for rank in many]


def test_forward_passes_alone_do_not_run_ahead_without_end(world):
    """The first rank waits for a slow second one."""
    found = world.run(evaluating, size=2, deadline=120)

    assert found[0]["send"] <= 8 * ROW_BYTES
    assert 0 == found[0]["held"]


def test_what_was_sent_is_let_go(world):
    """A rank keeps what its backward pass needs, which is not what it sent."""
    found = world.run(keeping, size=2, deadline=120)

    for number, gone in enumerate(found):
        assert 8 == len(gone)
        assert all(gone), number


def test_nothing_outlives_a_step(world):
    """No tensor more than before."""
    for before, after in world.run(counting, size=2, deadline=120):
        assert before is not None
        assert before == after


def split(schedule, microbatches, backend="smdist"):
    torch.set_num_threads(1)
    specimen = zoo.Specimen(model=Model(), batch=(torch.randn(2 * microbatches, WIDTH),))
    group = dist.new_group(backend="gloo") if backend == "gloo" else None
    return Split(specimen, Pipeline(schedule=schedule, num_microbatches=microbatches), group)


def peaks(rank, size, schedule, microbatches, backend):
    made = split(schedule, microbatches, backend)
    made.step()
    memory = made.executor.memory
    return {
        "receive": memory.receive_bytes.peak,
        "send": memory.send_bytes.peak,
        "held": memory.held.peak,
        "now": (memory.receive_bytes.now, memory.send_bytes.now, memory.held.now),
    }


def evaluating(rank, size):
    made = split("1f1b", 64)
    made.step(backward=False)
    memory = made.executor.memory
    return {"send": memory.send_bytes.peak, "held": memory.held.peak}


class Bare(nn.Module):
    """A result that its own backward pass does not need."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)
        object.__setattr__(self, "made", [])

    def forward(self, x):
        y = self.linear(x)
        self.made.append(weakref.ref(y))
        return y


def keeping(rank, size):
    """By microbatch, at the backward pass: whether the first stage's result is gone."""
    torch.set_num_threads(1)
    model = nn.Sequential(Bare(), Bare())
    specimen = zoo.Specimen(model=model, batch=(torch.randn(16, WIDTH),))
    gone = []

    class Hooks:
        def before_backward(self, stage, is_last):
            gone.append(rank == 1 or model[0].made[len(gone)]() is None)

        def after_backward(self, stage, is_last):
            pass

    made = Split(specimen, Pipeline(schedule="1f1b", num_microbatches=8), hooks=Hooks())
    model[0].made.clear()
    made.step()
    return gone


def counting(rank, size):
    made = split("zero_bubble", 8)
    feed = made.feed()

    def count():
        for stage in made.stages.values():
            stage.zero_grad(set_to_none=True)
        return settled(tensors_alive)

    made.executor.run(feed, draws=made.draws, backward=True)
    before = count()
    for _ in range(3):
        made.executor.run(feed, draws=made.draws, backward=True)
    return before, count()


def tensors_alive():
    gc.collect()
    return sum(isinstance(each, torch.Tensor) for each in gc.get_objects())


def settled(count):
    """The engine's own threads let go of messages a moment after whoever waited goes on."""
    found = count()
    for _ in range(50):
        time.sleep(0.1)
        before, found = found, count()
        if before == found:
            return found
    return None
