# SPDX-License-Identifier: Apache-2.0
"""Modules that share tensors without passing them as arguments are one unit, or are refused."""

import pytest
import torch
from torch import nn

from smdist.modelparallel.torch.capture import CaptureError, capture

BATCH = torch.ones(3, 4)


class Boxed(nn.Module):
    """A model around a module, so that the module may become a unit."""

    def __init__(self, inner):
        super().__init__()
        self.first, self.inner, self.last = nn.Linear(4, 4), inner, nn.Linear(4, 4)

    def forward(self, x):
        return self.last(self.inner(self.first(x)))


class Two(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 4)


class Told(nn.Linear):
    """Unit whose result depends on an attribute."""

    factor = 1.0

    def forward(self, x):
        return super().forward(x) * self.factor


@pytest.mark.parametrize("what", [lambda h: 2.0, lambda h: h.mean()])
def test_a_module_that_sets_attributes_of_a_unit_stays_whole(units_of, what):
    """Nobody would set them on another stage, or while the program runs."""

    class Inner(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = nn.Linear(4, 4), Told(4, 4)

        def forward(self, x):
            h = self.a(x)
            self.b.factor = what(h)
            return self.b(h)

    model = Boxed(Inner())

    assert ["first", "inner", "last"] == units_of(model, BATCH)
    assert "factor" not in vars(model.inner.b)


class Borrowing(nn.Linear):
    """A unit that uses what another module holds, without holding it as well."""

    lender = ()

    def forward(self, x):
        return self.borrow(super().forward(x), *self.lender)


def weight(h, module):
    return nn.functional.linear(h, module.weight)


def whole(h, module):
    return module(h)


def kept(h, module):
    return h + module.kept


def update(h, module):
    with torch.no_grad():
        module.weight.mul_(0.5)
    return h


class Keeping(nn.Linear):
    """A unit that keeps something of its last run."""

    def forward(self, x):
        self.kept = super().forward(x) * 2
        return self.kept + 1


@pytest.mark.parametrize("borrow", [weight, whole, kept, update])
def test_modules_that_share_behind_their_arguments_are_one_unit(units_of, borrow):
    """Apart, one of them would have a copy that is never trained, or nothing at all."""

    class Borrows(Borrowing):
        pass

    Borrows.borrow = staticmethod(borrow)

    class Inner(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = Keeping(4, 4), Borrows(4, 4)
            self.b.lender = (self.a,)

        def forward(self, x):
            return self.b(self.a(x).relu())

    assert ["first", "inner", "last"] == units_of(Boxed(Inner()), BATCH)


def test_what_is_shared_in_the_model_itself_is_refused_by_name():
    class Model(Two):
        def __init__(self):
            super().__init__()
            self.b = Borrowing(4, 4)
            self.b.borrow, self.b.lender = weight, (self.a,)

        def forward(self, x):
            return self.b(self.a(x))

    with pytest.raises(CaptureError) as caught:
        capture(Model(), BATCH)

    assert ("outside_tensor", ("b", "a.weight")) == (caught.value.kind, caught.value.about)


@pytest.mark.parametrize("order", ["before", "after"])
def test_a_module_that_reads_what_a_unit_counts_stays_whole(units_of, order):
    """A module that reads a buffer which a unit changes becomes one unit with it."""

    class Inner(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.norm = nn.Linear(4, 4), nn.BatchNorm1d(4)

        def forward(self, x):
            h = self.a(x)
            if order == "before":
                return self.norm(h + self.norm.running_mean)
            return self.norm(h) + self.norm.running_mean

    assert ["first", "inner", "last"] == units_of(Boxed(Inner()), BATCH)


def test_a_trained_tensor_outside_the_model_is_refused():
    outside = nn.Parameter(torch.ones(4))

    class Model(Two):
        def forward(self, x):
            return self.b(self.a(x) * outside)

    with pytest.raises(CaptureError) as caught:
        capture(Model(), BATCH)

    line = f"{__file__}:{Model.forward.__code__.co_firstlineno + 1}"
    assert ("not_a_parameter", line) == (caught.value.kind, caught.value.line)


class Deciding(nn.Module):
    """Data decide what it computes; it has nothing to remember."""

    def forward(self, h):
        return h * 2 if h.sum() > 0 else h * 3


class Counting(nn.Linear):
    """Data decide what it computes, and it counts."""

    def __init__(self):
        super().__init__(4, 4)
        self.register_buffer("count", torch.zeros(()))

    def forward(self, x):
        self.count += 1
        return super().forward(x) * (2 if x.sum() > 0 else 3)


class Again(nn.Module):
    def __init__(self, shared):
        super().__init__()
        self.a, self.b, self.shared = nn.Linear(4, 4), nn.Linear(4, 4), shared

    def forward(self, x):
        return self.shared(self.b(self.shared(self.a(x))))


def test_a_module_without_state_may_be_called_on_several_stages(torn):
    """A module without state may be on several stages, captured on fake tensors or probed."""
    found = torn(Again(Deciding()), BATCH)

    assert [False, False] == [
        call.has_state for call in found.captured.program.calls if call.is_probed
    ]
    assert 1 < len(found.stages)


@pytest.mark.parametrize("shared", [nn.BatchNorm1d(4), Counting()])
def test_the_smallest_module_around_all_calls_of_what_counts_is_a_unit(torn, shared):
    found = torn(Boxed(Again(shared)), BATCH)

    assert (("first",), ("inner",), ("last",)) == found.stages
    assert ["inner"] == [note.about for note in found.captured.notes]


def test_blocks_that_share_what_counts_are_one_unit(units_of):
    """Blocks that share a module with state are one unit."""

    class Blocks(nn.Module):
        def __init__(self):
            super().__init__()
            norm = nn.BatchNorm1d(4)
            self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(4, 4), norm) for _ in range(2))

        def forward(self, x):
            return self.blocks[1](self.blocks[0](x))

    assert ["first", "inner", "last"] == units_of(Boxed(Blocks()), BATCH)


def test_what_counts_may_be_called_again_where_it_counts_no_more(torn):
    assert 4 == len(torn(Again(nn.BatchNorm1d(4)).eval(), BATCH, tolerance=1e-5).stages)


def test_the_model_itself_may_not_call_twice_what_counts():
    with pytest.raises(CaptureError) as caught:
        capture(Again(nn.BatchNorm1d(4)), BATCH)

    module, buffer = caught.value.about
    assert ("repeated_call", "shared") == (caught.value.kind, module)
    assert buffer in {f"shared.{name}" for name, _ in nn.BatchNorm1d(4).named_buffers()}
