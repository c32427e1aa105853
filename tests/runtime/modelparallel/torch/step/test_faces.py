# SPDX-License-Identifier: Apache-2.0
"""`evaluate`, and steps that need more than a function's tensors."""

import torch
from smp_nets import batch, net, outcome, start, train_step
from torch import nn

import smdist.modelparallel.torch as smp


def modes(rank, size):
    start(size)
    raw = net(norm=nn.BatchNorm1d)
    raw.layers[0][1].eval()
    model = smp.parallelize(raw, costs="estimate")
    found = []
    for _ in range(2):  # the first cuts
        model.evaluate((batch()[0],))
        found.append([raw.layers[0][1].training, raw.layers[1][1].training, model.training])
    return found


def test_evaluation_leaves_each_module_in_its_mode(world):
    assert [[[False, True, True]] * 2] * 2 == world.run(modes, size=2)


class Samples:
    """Cuts itself."""

    def __init__(self, x, y):
        self.x, self.y = x, y

    def smp_slice(self, num_mb, mb, axis):
        return Samples(self.x.chunk(num_mb, axis)[mb], self.y.chunk(num_mb, axis)[mb])


@smp.step
def of_samples(model, samples):
    loss = nn.functional.cross_entropy(model(samples.x)["logits"], samples.y)
    model.backward(loss)
    return loss


def sliced(rank, size):
    start(size)
    model = smp.parallelize(net(), costs="estimate")
    losses = [of_samples(model, Samples(*batch())), train_step(model, *batch())]
    return [each.reduce_mean().item() for each in losses]


def test_a_batch_that_cuts_itself_may_be_all_that_a_first_step_gets(world):
    for own, plain in world.run(sliced, size=2):
        assert own == plain


def inferred(rank, size):
    start(size)
    with smp.delay_param_initialization():
        raw = net()
    model = smp.parallelize(raw, costs="estimate")

    @smp.step
    def forward(model, x):
        return model(x)["logits"]

    with torch.inference_mode():
        forward(model, batch()[0])
    return outcome(train_step, model, *batch())


def test_a_model_without_values_may_begin_in_inference_mode(world):
    assert ["ok", "ok"] == [kind for kind, _ in world.run(inferred, size=2)]
