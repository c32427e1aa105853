# SPDX-License-Identifier: Apache-2.0
"""Changes in place, across cuts: the value before and the value after are two values."""

import pytest
import torch
from torch import nn

from smdist.modelparallel.torch.capture import CaptureError, capture


class Three(nn.Module):
    """Three layers; subclasses say how they are joined."""

    def __init__(self):
        super().__init__()
        self.a, self.b, self.c = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 4)


class Boxed(nn.Module):
    """A model around a module, so that the module may become a unit."""

    def __init__(self, inner):
        super().__init__()
        self.first, self.inner, self.last = nn.Linear(4, 4), inner, nn.Linear(4, 4)

    def forward(self, x):
        return self.last(self.inner(self.first(x)))


def test_a_unit_may_change_what_it_receives_from_another_stage(torn):
    class Model(Three):
        def __init__(self):
            super().__init__()
            self.relu = nn.ReLU(inplace=True)

        def forward(self, x):
            return self.c(self.relu(self.a(x)))

    found = torn(Model(), torch.randn(3, 4))

    assert found.relative_error <= 1e-6


def test_a_unit_with_weights_may_change_what_it_receives(torn):
    """The received value is a leaf, which PyTorch would refuse to change."""

    class Grow(nn.Linear):
        def forward(self, x):
            return super().forward(x.mul_(2))

    class Model(Three):
        def __init__(self):
            super().__init__()
            self.grow = Grow(4, 4)

        def forward(self, x):
            return self.c(self.grow(self.a(x)))

    found = torn(Model(), torch.randn(3, 4))

    assert found.relative_error <= 1e-6


def test_readers_before_a_change_see_the_old_value_on_whatever_stage(torn):
    """`b` is on a later stage than the change, though it ran before it."""

    class Model(Three):
        def __init__(self):
            super().__init__()
            self.b.requires_grad_(False)  # so that it does not keep what it read

        def forward(self, x):
            h = self.a(x)
            before = self.b(h)
            h.mul_(3)
            return self.c(before + h)

    found = torn(Model(), torch.randn(3, 4))

    assert found.output_error <= 1e-6
    assert found.relative_error <= 1e-6


def test_a_change_between_two_units_is_seen_by_the_second_alone(torn):
    class Model(Three):
        def __init__(self):
            super().__init__()
            self.b.requires_grad_(False)

        def forward(self, x):
            h = self.a(x)
            early = self.b(h)
            h += 1
            return self.c(h) * early

    found = torn(Model(), torch.randn(3, 4))

    assert found.output_error <= 1e-6


def test_items_may_be_set(torn):
    class Model(Three):
        def forward(self, x):
            h = self.a(x)
            mask = torch.ones(4)
            mask[1] = 0
            h = self.b(h * mask)
            h[:, 0] = x[:, 1]
            return self.c(h)

    found = torn(Model(), torch.randn(3, 4))

    assert found.output_error <= 1e-6


def test_an_item_may_be_set_from_the_same_tensor(torn):
    class Model(Three):
        def forward(self, x):
            h = self.a(x)
            h[:, 0] = h[:, 1]
            return self.c(self.b(h))

    assert torn(Model(), torch.randn(3, 4)).relative_error <= 1e-6


def test_a_unit_may_change_two_arguments(torn):
    class Both(nn.Module):
        def forward(self, x, y):
            return x.mul_(2) + y.mul_(3)

    class Model(Three):
        def __init__(self):
            super().__init__()
            self.both = Both()

        def forward(self, x):
            g, h = self.a(x), self.b(x)
            return self.c(self.both(g, h)) + g * h

    assert torn(Model(), torch.randn(3, 4)).relative_error <= 1e-6


def test_a_unit_that_changes_a_tensor_it_gets_twice_needs_both(units_of):
    class Both(nn.Module):
        def forward(self, x, y):
            return x.mul_(2) + y

    class Inner(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.both = nn.Linear(4, 4), Both()

        def forward(self, x):
            h = self.a(x)
            return self.both(h, h[:, :1])

    names = units_of(Boxed(Inner()), torch.randn(3, 4))

    assert ["first", "inner", "last"] == names


def test_a_view_may_be_changed_where_nobody_reads_the_rest(torn):
    class Model(Three):
        def forward(self, x):
            h = self.a(x).view(-1)
            h.add_(1)
            return self.c(self.b(h.view(3, 4)))

    found = torn(Model(), torch.randn(3, 4))

    assert found.relative_error <= 1e-6


def double_half(h):
    """The base is read after a view of it was changed."""
    h[:, :2].mul_(2)
    return h


def test_a_stale_alias_makes_its_module_a_unit(units_of, torn):
    """The pieces could only be right together."""

    class Inner(nn.Module):
        def __init__(self):
            super().__init__()
            self.deep = nn.Linear(4, 4)

        def forward(self, x):
            return double_half(self.deep(x))

    model = Boxed(Inner())

    found = torn(model, torch.randn(3, 4))

    assert ["first", "inner", "last"] == units_of(model, torch.randn(3, 4))
    assert found.relative_error <= 1e-6


def test_a_stale_alias_in_the_model_itself_is_refused():
    class Model(Three):
        def forward(self, x):
            return self.b(double_half(self.a(x)))

    with pytest.raises(CaptureError) as caught:
        capture(Model(), torch.randn(3, 4))

    assert "stale_view" == caught.value.kind
    assert caught.value.line.startswith(f"{__file__}:")


def test_the_callers_batch_stays_as_it_is_in_stages(torn):
    class Model(Three):
        def forward(self, x):
            x.mul_(2)
            return self.b(self.a(x)) + self.c(x)

    batch = torch.randn(3, 4)
    before = batch.clone()

    found = torn(Model(), batch)

    assert found.output_error <= 1e-6
    assert torch.equal(before, batch)


def test_a_unit_that_changes_its_argument_and_returns_nothing_makes_a_new_value(torn):
    class Double(nn.Module):
        def forward(self, x):
            x.mul_(2)

    class Model(Three):
        def __init__(self):
            super().__init__()
            self.twice = Double()

        def forward(self, x):
            h = self.a(x)
            self.twice(h)
            return self.b(h)

    found = torn(Model(), torch.randn(3, 4))

    assert found.output_error <= 1e-6
    assert found.relative_error <= 1e-6


def test_a_buffer_that_glue_changes_stays_with_its_module(units_of, torn):
    class Counting(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(4, 4)
            self.register_buffer("steps", torch.zeros(()))

        def forward(self, x):
            self.steps += 1
            return self.layer(x) * self.steps

    model = Boxed(Counting())

    found = torn(model, torch.randn(3, 4))

    assert ["first", "inner", "last"] == units_of(model, torch.randn(3, 4))
    assert 0.0 == found.buffer_error
    assert 0.0 == model.inner.steps.item()


def test_batch_statistics_in_glue_stay_with_their_module(units_of):
    class Normed(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(4, 4)
            self.register_buffer("mean", torch.zeros(4))
            self.register_buffer("var", torch.ones(4))

        def forward(self, x):
            return nn.functional.batch_norm(self.layer(x), self.mean, self.var, training=True)

    model = Boxed(Normed())

    names = units_of(model, torch.randn(3, 4))

    assert ["first", "inner", "last"] == names
    assert torch.equal(torch.zeros(4), model.inner.mean)


def test_a_buffer_that_the_model_itself_changes_is_refused():
    class Model(Three):
        def __init__(self):
            super().__init__()
            self.register_buffer("steps", torch.zeros(()))

        def forward(self, x):
            self.steps.add_(1)
            return self.b(self.a(x))

    with pytest.raises(CaptureError) as caught:
        capture(Model(), torch.randn(3, 4))

    assert ("changed_in_place", ("steps",)) == (caught.value.kind, caught.value.about)


def test_capture_changes_no_statistics():
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Linear(4, 4))

    capture(model, torch.randn(3, 4))

    assert 0 == model[1].num_batches_tracked.item()
    assert torch.equal(torch.zeros(4), model[1].running_mean)


def test_statistics_are_updated_once_in_stages(torn):
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Linear(4, 4))

    found = torn(model, torch.randn(3, 4))

    assert 0.0 == found.buffer_error
    assert 0 == model[1].num_batches_tracked.item()


def test_statistics_without_parameters_are_updated_once(torn):
    """Nothing but the inputs feeds this unit, yet it must run on one stage alone."""

    class Model(Three):
        def __init__(self):
            super().__init__()
            self.norm = nn.BatchNorm1d(4, affine=False)

        def forward(self, x):
            h = self.norm(x)
            return self.b(self.a(h)) + h

    found = torn(Model(), torch.randn(3, 4))

    assert 0.0 == found.buffer_error
