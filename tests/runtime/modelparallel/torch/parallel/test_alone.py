# SPDX-License-Identifier: Apache-2.0
"""A model of one stage that is called outside of steps: draws, buffers, what begins where."""

import logging

import torch
from smp_nets import batch, net, start, train_step
from torch import nn

import smdist.modelparallel.torch as smp
from smdist.modelparallel.torch.parallel import first_step


class Dropped(nn.Module):
    """Which outputs are 0 shows what was drawn."""

    def __init__(self):
        super().__init__()
        self.wide, self.drop = nn.Linear(8, 64), nn.Dropout(0.5)

    def forward(self, x):
        return self.drop(self.wide(x))


def masks(rank, size):
    start(1)
    model, (x, _) = smp.parallelize(Dropped(), costs="estimate"), batch()

    @smp.step
    def forward(model, x):
        return model(x)

    found = [model(x), model(x)]
    with torch.no_grad():
        found += [model(x), model(x)]
        found += [forward(model, x).concat() for _ in range(2)]
    again = [model(x)]
    model.backward(again[0].mean())
    return [(each == 0).tolist() for each in [*found, *again, model(x)]]


def test_each_call_outside_of_a_step_drops_other_numbers(world):
    (found,) = world.run(masks, size=1)

    assert found[0] != found[1] != found[6] != found[7]
    assert found[2] != found[3]
    assert found[4] != found[5]


def statistics(rank, size):
    """Replicas see other batches."""
    start(1)
    model = smp.parallelize(net(norm=nn.BatchNorm1d), costs="estimate")
    x, _ = batch()
    for at in range(3):
        output = model(x + rank * (at < 2))["logits"]  # the last is common
        model.backward(output.square().mean())
    return model.module.layers[0][1].running_mean.tolist()


def test_replicas_go_on_from_the_statistics_of_the_first(world):
    first, second = world.run(statistics, size=2)

    assert first == second


class Scaled(nn.Module):
    """Returns a parameter beside its output."""

    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(8, 8), nn.Linear(8, 8)
        self.scale = nn.Parameter(torch.tensor(2.0))

    def forward(self, x):
        return self.last(self.first(x)), self.scale


def hooks(rank, size):
    start(size, auto_partition=size == 1, default_partition=0 if size > 1 else None)
    raw = Scaled()
    smp.set_partition(raw.last, size - 1)
    model = smp.parallelize(raw, costs="estimate")
    for _ in range(2):
        model.train_step((batch()[0],), lambda o: o[0].square().mean() * o[1])
    return sum(len(p._backward_hooks or {}) for p in model.parameters())


def test_parameters_that_a_model_returns_gather_no_hooks(world):
    assert [0, 0] == world.run(hooks, size=2)


def warned(rank, size):
    """Split two models with offload on the CPU; return the warnings of this rank."""
    first_step._warn_of_cpu.cache_clear()  # ranks of several tests share a process
    lines, handler = [], logging.Handler()
    handler.emit = lambda record: lines.append(record.getMessage())
    logging.getLogger("smdist").addHandler(handler)
    start(2, offload_activations=True, offload_optimizer=True)
    for _ in range(2):
        model = smp.parallelize(net(), costs="estimate")
        train_step(model, *batch())
        assert model.host_update is None
    return lines


def test_on_the_cpu_offload_moves_nothing_and_says_so_once(world):
    first, second = world.run(warned, size=2)

    moved = [line.partition(" moves nothing")[0] for line in first]
    assert ["offload_optimizer=True", "offload_activations=True"] == moved
    assert [] == second
