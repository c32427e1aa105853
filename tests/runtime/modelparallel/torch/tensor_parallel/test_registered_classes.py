# SPDX-License-Identifier: Apache-2.0
"""Classes that are registered to be used in place of others, with tensor parallelism."""

import pytest
import torch
from error_fields import fields_of
from torch import nn

import smdist.modelparallel.torch as smp
from sagemaker_dist.errors import OptionError
from smdist.modelparallel.torch.tensor_parallel import replace_registered

WIDTH = 8


class Dense(nn.Module):
    """MLP whose weights are read by a function, so that none is found to be split."""

    def __init__(self, width, *, hidden):
        super().__init__()
        self.up = nn.Parameter(torch.randn(hidden, width) * 0.3)
        self.down = nn.Parameter(torch.randn(width, hidden) * 0.3)

    def forward(self, x, scale=1.0):
        return (x @ self.up.t()).relu() @ self.down.t() * scale


class Apart(nn.Module):
    """The same MLP of linear layers, with other arguments, and a tuple as its output."""

    def __init__(self, inputs, outputs):
        super().__init__()
        self.up = nn.Linear(inputs, outputs, bias=False)
        self.down = nn.Linear(outputs, inputs, bias=False)

    def forward(self, pair):
        x, scale = pair
        return (self.down(self.up(x).relu()) * scale,)


def registered():
    """Return a class of its own for each test, and register `Apart` for it."""

    @smp.tp_register(
        Apart,
        init_hook=lambda width, *, hidden: ((width, hidden), {}),
        forward_hook=lambda x, scale=1.0: (((x, scale),), {}),
        return_hook=lambda output: output[0],
    )
    class Registered(Dense):
        pass

    return Registered


def test_modules_of_a_registered_class_are_replaced():
    kind = registered()
    model = nn.Sequential(nn.LayerNorm(WIDTH), kind(WIDTH, hidden=24).double().eval())

    assert model is replace_registered(model)
    made = model[1]
    x = torch.randn(2, WIDTH, dtype=torch.float64)
    assert (24, WIDTH) == (made.up.out_features, made.up.in_features)
    assert torch.equal(2 * made(x), made(x, scale=2.0))
    assert isinstance(made, Apart)
    assert (torch.float64, False) == (made.up.weight.dtype, made.training)


def test_the_model_itself_may_be_replaced():
    assert isinstance(replace_registered(registered()(WIDTH, hidden=24)), Apart)


def test_modules_that_stay_whole_and_subclasses_are_not_replaced():
    kind = registered()

    class Subclass(kind):
        pass

    model = nn.Sequential(kind(WIDTH, hidden=24), Subclass(WIDTH, hidden=24))
    smp.set_tensor_parallelism(model[0], False)

    assert [kind, Subclass] == [type(each) for each in replace_registered(model)]


def test_a_module_from_before_its_class_was_registered_is_refused():
    class Early(Dense):
        pass

    model = nn.Sequential(Early(WIDTH, hidden=24))
    smp.tp_register_with_module(Early, Dense)
    with pytest.raises(OptionError) as caught:
        replace_registered(model)

    assert [("0", "unsupported")] == fields_of(caught.value)


def test_wrong_arguments_are_refused_together():
    with pytest.raises(OptionError) as caught:
        smp.tp_register_with_module(Dense(8, hidden=8), "Apart", init_hook=3)

    assert ["module_cls", "dist_module", "init_hook"] == [
        about for about, _ in fields_of(caught.value)
    ]


class Scored(nn.Module):
    """Registered MLP with the loss of its output."""

    def __init__(self):
        super().__init__()
        self.norm, self.mlp = nn.LayerNorm(WIDTH), registered()(WIDTH, hidden=24)

    def forward(self, x):
        return self.mlp(self.norm(x), scale=2.0).square().mean()


@smp.step
def train_step(model, x):
    loss = model(x)
    model.backward(loss)
    return loss


def trained(rank, size):
    torch.manual_seed(0)
    smp.init({"tensor_parallel_degree": size, "ddp": True, "microbatches": 1})
    model = smp.DistributedModel(Scored().double(), trace_device="cpu")
    whole = {key: value.clone() for key, value in model.module.state_dict().items()}
    loss = float(train_step(model, inputs()).reduce_mean())
    return whole, loss, [(each.name, each.role.value) for each in model.tensor_plan.modules]


def inputs():
    return torch.linspace(-1, 1, 4 * WIDTH, dtype=torch.float64).view(4, WIDTH)


def test_the_new_class_is_split_over_ranks(world):
    (whole, loss, split), (_, other, _) = world.run(trained, size=2, deadline=80)
    model = replace_registered(Scored()).double()
    model.load_state_dict(whole)

    assert [("mlp.up", "column"), ("mlp.down", "row")] == split
    assert loss == other == pytest.approx(model(inputs()).item(), rel=1e-12)
