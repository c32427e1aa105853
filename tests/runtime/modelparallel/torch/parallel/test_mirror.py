# SPDX-License-Identifier: Apache-2.0
"""Whatever settings a model has now, its skeleton has too; what cannot be taken over is refused."""

import copy

import pytest
import torch
from smp_nets import batch, start
from torch import nn

import smdist.modelparallel.torch as smp
from sagemaker_dist.errors import OptionError
from smdist.modelparallel.torch.capture import signature
from smdist.modelparallel.torch.capture.signature import SkeletonSync


class Rates:
    """An object with settings."""

    def __init__(self):
        self.by_name = {"k": 1.0}


class Weighted(nn.Module):
    """Its forward function reads settings of many kinds."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.a, self.b, self.c = (nn.Linear(8, 8) for _ in range(3))
        self.factors, self.by_name, self.rates = [1.0, 1.0], {"k": [1.0]}, Rates()
        self.act, self.pair, self.cell, self.buffered = torch.tanh, (1, 2), object(), torch.ones(1)

    def forward(self, x):
        x = self.act(self.a(x)) * self.factors[0]
        x = self.b(x) * self.factors[1] * self.by_name["k"][0] * self.rates.by_name["k"]
        return self.c(x) * getattr(self, "late", 1.0)


CHANGES = [
    lambda model: setattr(model, "factors", [0.1, 5.0]),
    lambda model: model.factors.__setitem__(1, 3.0),
    lambda model: model.by_name["k"].__setitem__(0, 3.0),
    lambda model: model.rates.by_name.update(k=3.0),
    lambda model: setattr(model, "act", torch.relu),
    lambda model: setattr(model, "late", 4.0),
    lambda model: delattr(model, "late"),
]


def losses(rank, size):
    start(size, auto_partition=False, default_partition=0)
    raw, plain, (x, _) = Weighted(), Weighted(), batch()
    smp.set_partition(raw.c, size - 1)
    model = smp.parallelize(raw, costs="estimate")
    found = []
    for change in (lambda _: None, *CHANGES):
        for each in (raw, plain):
            change(each)
        ours = model.train_step((x,), lambda o: o.square().mean()).reduce_mean().item()
        found.append((ours, plain(x).square().mean().item()))
    return found


def test_settings_changed_after_the_cut_count(world):
    for found in world.run(losses, size=2):
        for ours, plain in found:
            assert plain == pytest.approx(ours, rel=1e-5)


def mirrored():
    model = Weighted()
    return model, copy.deepcopy(model)


@pytest.mark.parametrize("change", CHANGES[:-1])
def test_each_change_is_taken_over_once(change):
    model, skeleton = mirrored()
    mirror, before = SkeletonSync(model, skeleton, ["a", "b", "c"]), signature(skeleton, ((), {}))

    change(model)
    for _ in range(2):
        mirror.update()

    assert 1 == mirror.version
    assert before != signature(skeleton, ((), {})) == signature(model, ((), {}))


@pytest.mark.parametrize("name", ["cell", "buffered", "rates"])
def test_an_object_in_the_place_of_another_is_refused_by_name(name):
    model, skeleton = mirrored()
    mirror = SkeletonSync(model, skeleton, ["a", "b", "c"])
    setattr(model, name, copy.deepcopy(model.rates))

    with pytest.raises(OptionError) as caught:
        mirror.update()

    assert ((name,), "changed") == (caught.value.about, caught.value.kind)


def test_what_modules_keep_for_themselves_is_theirs():
    model, skeleton = mirrored()
    mirror = SkeletonSync(model, skeleton, ["a", "b", "c"])
    model.a.last, model.a.seen = torch.ones(2), [torch.ones(2)]

    mirror.update()

    assert 0 == mirror.version
