# SPDX-License-Identifier: Apache-2.0
"""Values between units: all kinds of nested arguments and results, at every cut."""

from dataclasses import dataclass
from typing import Any, NamedTuple

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations

from smdist.modelparallel.torch.capture import capture

BATCH = torch.linspace(-1, 1, 12).view(3, 4)


class Three(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b, self.c = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 4)


@dataclass
class Record:
    hidden: torch.Tensor
    extra: Any = None


class Pair(NamedTuple):
    left: torch.Tensor
    right: Any


FORMS = {
    "tuple": (lambda h: (h, None, 3), lambda p: p[0]),
    "list": (lambda h: [h, [h * 2]], lambda p: p[0] + p[1][0]),
    "dict": (lambda h: {"h": h, "n": "name"}, lambda p: p["h"]),
    "dataclass": (lambda h: Record(h, {"twice": h * 2}), lambda p: p.hidden + p.extra["twice"]),
    "named": (lambda h: Pair(h, 1.5), lambda p: p.left * p.right),
    "twice": (lambda h: (h, h), lambda p: p[0] * p[1]),
    "transposed": (lambda h: h.t(), lambda p: p.t()),
    "expanded": (lambda h: h[:1].expand(3, 4), lambda p: p),
    "halves": (lambda h: h.chunk(2, dim=1), lambda p: torch.cat(p, dim=1)),
    "largest": (
        lambda h: h.max(dim=1, keepdim=True),
        lambda p: (p.values + p.indices + p[0]).expand(3, 4),
    ),
}


@pytest.mark.parametrize("form", FORMS)
def test_units_return_whatever_they_like(torn, form):
    pack, unpack = FORMS[form]

    class Packing(nn.Linear):
        def forward(self, x):
            return pack(super().forward(x))

    class Unpacking(nn.Linear):
        def forward(self, packed):
            return super().forward(unpack(packed))

    class Model(Three):
        def __init__(self):
            super().__init__()
            self.b, self.c = Packing(4, 4), Unpacking(4, 4)

        def forward(self, x):
            return self.c(self.b(self.a(x)))

    assert torn(Model(), BATCH).relative_error <= 1e-6


@pytest.mark.parametrize("form", FORMS)
def test_glue_packs_whatever_it_likes(torn, form):
    pack, unpack = FORMS[form]

    class Model(Three):
        def forward(self, x):
            return self.c(unpack(pack(self.b(self.a(x)))))

    assert torn(Model(), BATCH).relative_error <= 1e-6


@pytest.mark.parametrize("form", FORMS)
def test_models_return_whatever_they_like(torn, form):
    class Model(Three):
        def forward(self, x):
            h = self.a(x)
            return FORMS[form][0](self.c(self.b(h))), h

    assert torn(Model(), BATCH).relative_error <= 1e-6


def test_keyword_arguments_may_be_nested(torn):
    class Model(Three):
        def forward(self, batch, *, scale, mode="sum"):
            h = self.a(batch["x"]) * scale + batch["more"][0]
            return self.c(self.b(h)) if mode == "mean" else None

    batch = {"batch": {"x": BATCH, "more": (BATCH, None)}, "scale": 2.0, "mode": "mean"}

    found = torn(Model(), batch)

    assert found.relative_error <= 1e-6
    inputs = [n.name for n in found.captured.graph.nodes if n.name.startswith("input")]
    assert ["input:batch.x", "input:batch.more.0"] == inputs


def test_inputs_may_want_gradients(torn):
    class Model(Three):
        def forward(self, x):
            return self.c(self.b(self.a(x) * x) + x)

    assert torn(Model(), BATCH.clone().requires_grad_()).relative_error <= 1e-6


def test_a_model_may_return_nothing(torn):
    class Model(Three):
        def forward(self, x):
            self.c(self.b(self.a(x)))

    found = torn(Model(), BATCH)

    assert () == found.captured.graph.outputs
    assert 0.0 == found.relative_error


def test_the_loss_may_be_part_of_the_model(torn):
    class Model(Three):
        def forward(self, x, labels):
            logits = self.c(self.b(self.a(x)))
            return {"loss": nn.CrossEntropyLoss()(logits, labels), "logits": logits, "beta": 0.5}

    found = torn(Model(), {"x": BATCH, "labels": torch.tensor([0, 1, 2])})

    assert found.relative_error <= 1e-6


class Same(nn.Module):
    def forward(self, x):
        return x


class Part(nn.Module):
    def forward(self, x):
        return x[:, :2]


@pytest.mark.parametrize("unit", [nn.Identity(), Same(), nn.Dropout(0.0), nn.Flatten()])
def test_a_unit_may_return_its_argument(torn, unit):
    class Model(Three):
        def __init__(self):
            super().__init__()
            self.same = unit

        def forward(self, x):
            h = self.a(x)
            return self.c(self.same(self.b(h))) + self.same(h)

    assert torn(Model(), BATCH).relative_error <= 1e-6


def test_a_unit_may_return_a_part_of_its_argument(torn):
    class Model(Three):
        def __init__(self):
            super().__init__()
            self.part, self.last = Part(), nn.Linear(2, 2)

        def forward(self, x):
            h = self.a(x)
            return self.last(self.part(h)) + self.b(h)[:, 2:]

    assert torn(Model(), BATCH).relative_error <= 1e-6


def test_a_module_may_be_called_again(torn):
    class Model(Three):
        def forward(self, x):
            return self.c(self.a(self.b(self.a(x))))

    model = Model()
    captured = capture(model, BATCH)

    names = [unit.name for unit in captured.graph.units]
    assert ["a", "b", "a@2", "c"] == names
    found = torn(model, BATCH)
    assert found.relative_error <= 1e-6
    assert ("a.weight", "a.bias") == tuple(tie.parameter for tie in found.placement.ties)


def test_glue_may_use_parameters_of_units(torn):
    class Model(Three):
        def forward(self, x):
            h = self.b(self.a(x))
            return self.c(nn.functional.linear(h, self.a.weight) @ self.c.weight.t())

    found = torn(Model(), BATCH)

    assert found.relative_error <= 1e-6
    assert {"a.weight", "c.weight"} == {tie.parameter for tie in found.placement.ties}


def test_parameters_may_be_tied(torn):
    class Model(Three):
        def __init__(self):
            super().__init__()
            self.c.weight = self.a.weight

        def forward(self, x):
            return self.c(self.b(self.a(x)))

    found = torn(Model(), BATCH)

    assert found.relative_error <= 1e-6
    assert ("c.weight",) == found.captured.graph.parameter["a.weight"].aliases
    assert ("a.weight",) == tuple(tie.parameter for tie in found.placement.ties)


def test_tensors_that_are_no_parameters_are_found_where_they_are(torn):
    outside = torch.full((4,), 3.0)

    class Model(Three):
        def __init__(self):
            super().__init__()
            self.scale = torch.full((4,), 2.0)
            self.register_buffer("shift", torch.ones(4))
            self.own = nn.Parameter(torch.ones(1, 4))

        def forward(self, x):
            h = self.a(x) * self.scale + self.shift
            return self.c(self.b(h + self.own) * outside)

    found = torn(Model(), BATCH)

    assert found.relative_error <= 1e-6


def test_what_modules_compute_their_weights_from_is_theirs(torn):
    model = nn.Sequential(
        parametrizations.weight_norm(nn.Linear(4, 4)),
        parametrizations.orthogonal(nn.Linear(4, 4)),
        nn.Linear(4, 4),
    )

    found = torn(model, BATCH)

    assert (("0",), ("1",), ("2",)) == found.stages
    assert found.relative_error <= 1e-6


def test_glue_may_use_weights_that_are_computed(torn):
    class Model(Three):
        def __init__(self):
            super().__init__()
            parametrizations.weight_norm(self.b)

        def forward(self, x):
            return self.c(nn.functional.linear(self.a(x), self.b.weight))

    assert torn(Model(), BATCH).relative_error <= 1e-6


@pytest.mark.filterwarnings("ignore:.*weight_norm.*:FutureWarning")
@pytest.mark.filterwarnings("ignore:.*torch.jit.*:DeprecationWarning")
def test_scripted_and_old_style_units_work(torn):
    model = nn.Sequential(
        nn.Linear(4, 4),
        torch.jit.script(nn.Sequential(nn.Linear(4, 4), nn.ReLU())),
        nn.utils.weight_norm(nn.Linear(4, 4)),
    )

    assert torn(model, BATCH).relative_error <= 1e-6


def in_place(module):
    module.compile(backend="eager")
    return module


@pytest.mark.parametrize("compiled", [lambda m: torch.compile(m, backend="eager"), in_place])
def test_compiled_units_work(torn, compiled):
    inner = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    model = nn.Sequential(nn.Linear(4, 4), compiled(inner), nn.Linear(4, 4))

    found = torn(model, BATCH)

    assert (("0",), ("1",), ("2",)) == found.stages
    assert found.relative_error <= 1e-6


def test_a_compiled_function_keeps_its_module_whole(torn):
    """A module with a compiled function is a unit, since its parts would not be compiled."""
    function = torch.compile(lambda h: h.sin().cos(), backend="eager")

    class Inner(Three):
        def forward(self, x):
            return self.b(function(self.a(x)))

    class Model(Three):
        def __init__(self):
            super().__init__()
            self.b = Inner()

        def forward(self, x):
            return self.c(self.b(self.a(x)))

    found = torn(Model(), BATCH)

    assert (("a",), ("b",), ("c",)) == found.stages
    assert found.relative_error <= 1e-6


def test_random_numbers_in_glue_are_the_same_in_stages(torn):
    class Model(Three):
        def forward(self, x):
            h = nn.functional.dropout(self.a(x), 0.5)
            h = h + torch.rand_like(h) + torch.randn(4)
            h = nn.functional.dropout(self.b(h), 0.5)
            return self.c(h)

    found = torn(Model(), BATCH)

    assert found.relative_error <= 1e-6
    random = [node.name for node in found.captured.graph.nodes if node.is_random]
    assert [":dropout", ":rand_like", ":randn", ":dropout@2"] == random


def test_glue_that_nobody_reads_is_left_out():
    class Model(Three):
        def forward(self, x):
            h = self.a(x)
            (h * 2).sum()
            return self.c(h)

    names = [node.name for node in capture(Model(), BATCH).graph.nodes]

    assert ["input:0", "a", "c"] == names


def test_classes_with_a_call_of_their_own_are_met_outside(torn):
    class Loud(nn.Module):
        def __call__(self, *args, **kwargs):
            return super().__call__(*args, **kwargs) * 3

    class Unit(Loud):
        def forward(self, x):
            return x * 2

    class Box(Loud):
        def __init__(self):
            super().__init__()
            self.a, self.unit = nn.Linear(4, 4), Unit()

        def forward(self, x):
            return self.unit(self.a(x))

    found = torn(nn.Sequential(nn.Linear(4, 4), Box(), nn.Linear(4, 4)), BATCH, tolerance=1e-6)

    assert 0.0 == found.output_error
