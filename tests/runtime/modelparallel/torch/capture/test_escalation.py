# SPDX-License-Identifier: Apache-2.0
"""Modules that cannot be recorded become units, and the search for them ends."""

import pytest
import torch
from torch import nn

from sagemaker_dist.errors import OptionError
from smdist.modelparallel.core.note import UNCUT_MODULE
from smdist.modelparallel.torch.capture import CaptureError, capture, shape_probe

BATCH = torch.ones(3, 4)


class Two(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x):
        return self.b(self.between(self.a(x)))


class Boxed(nn.Module):
    def __init__(self, inner):
        super().__init__()
        self.first, self.inner, self.last = nn.Linear(4, 4), inner, nn.Linear(4, 4)

    def forward(self, x):
        return self.last(self.inner(self.first(x)))


def branch(h):
    return h * 2 if h.sum() > 0 else h * 3


def item(h):
    return h * h.max().item()


def listed(h):
    return h * len(h.flatten().tolist())


def to_numpy(h):
    return h * float(h.detach().numpy().max())


def nonzero(h):
    return h * h.nonzero().shape[0]


def swallowed(h):
    try:
        return branch(h)
    except BaseException:
        return h


NUMBERS = {  # kind of the error for each function
    branch: "needs_values",
    item: "needs_values",
    to_numpy: "failed_in_capture",
    nonzero: "needs_values",
    swallowed: "needs_values",
    listed: "needs_values",
}


def line_in(function):
    """Return file and number of the line in which a function needs numbers."""
    inner = branch if function is swallowed else function
    return f"{__file__}:{inner.__code__.co_firstlineno + 1}"


@pytest.mark.parametrize("needs", NUMBERS)
def test_glue_that_needs_numbers_keeps_its_module_whole(torn, needs):
    class Inner(Two):
        def between(self, h):
            return needs(h)

    found = torn(Boxed(Inner()), BATCH)

    assert (("first",), ("inner",), ("last",)) == found.stages
    assert found.relative_error <= 1e-6
    assert ["inner"] == [note.about for note in found.captured.notes]


@pytest.mark.parametrize("needs", NUMBERS)
def test_in_the_model_itself_it_is_refused_with_the_line(needs):
    class Model(Two):
        def between(self, h):
            return needs(h)

    with pytest.raises(CaptureError) as caught:
        capture(Model(), BATCH)

    assert (NUMBERS[needs], line_in(needs)) == (caught.value.kind, caught.value.line)


class Picky(nn.Linear):
    """A leaf that looks at its numbers."""

    def forward(self, x):
        h = super().forward(x)
        return h * 2 if h.sum() > 0 else h * 3


def test_a_unit_may_look_at_its_numbers(torn):
    model = nn.Sequential(nn.Linear(4, 4), Picky(4, 4), nn.Linear(4, 4))

    found = torn(model, BATCH)

    assert found.captured.program.call["1"].is_probed
    assert found.relative_error <= 1e-6


def test_trying_a_unit_changes_nothing(torn):
    class Normed(Picky):
        def __init__(self, *sizes):
            super().__init__(*sizes)
            self.register_buffer("count", torch.zeros(()))

        def forward(self, x):
            self.count += 1
            return nn.functional.dropout(super().forward(x))

    model = nn.Sequential(nn.Linear(4, 4), Normed(4, 4), nn.Linear(4, 4))
    state = torch.get_rng_state()

    capture(model, BATCH)

    assert 0 == model[1].count.item()
    assert torch.equal(state, torch.get_rng_state())
    assert model[1].weight.grad is None


def test_a_unit_whose_shape_depends_on_numbers_stays_inside_the_module_around(units_of):
    class Inner(nn.Module):
        def __init__(self):
            super().__init__()
            self.choose = Choose()

        def forward(self, x):
            return x * self.choose(x).sum()

    assert ["first", "inner", "last"] == units_of(Boxed(Inner()), BATCH)


class Choose(nn.Module):
    def forward(self, x):
        return x[x > 0.1]


def test_a_shape_that_depends_on_numbers_in_the_model_itself_is_refused():
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.choose, self.a = Choose(), nn.Linear(4, 4)

        def forward(self, x):
            return self.choose(self.a(x)).sum()

    with pytest.raises(CaptureError) as caught:
        capture(Model(), BATCH)

    assert ("varying_result", ("choose",)) == (caught.value.kind, caught.value.about)


def test_a_number_that_depends_on_the_data_is_found_when_it_changes():
    """Both trials agreed, the batch does not: the run says so, and computes nothing wrong."""

    class Rare(nn.Linear):
        def forward(self, x):
            return super().forward(x), float(x.sum() > 1e6)

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.rare, self.a = Rare(4, 4), nn.Linear(4, 4)

        def forward(self, x):
            h, number = self.rare(x * 1.0)
            return self.a(h) * number

    from smdist.modelparallel.torch.verification.verify import verify

    with pytest.raises(OptionError) as caught:
        verify(Model(), torch.full((3, 4), 1e6))

    assert ("varying_result", ("rare",)) == (caught.value.kind, caught.value.about)
    assert (
        "'rare' returned 1.0 where it returned 0.0 before: the result depends on the values of the"
        " inputs, but the later calls were recorded for another result. Return tensors of fixed"
        " shapes, or call capture(closed=[...]) with the name of the calling module."
        == str(caught.value)
    )


def test_a_unit_on_the_meta_device_gets_numbers_for_the_trial_alone():
    with torch.device("meta"):
        model = nn.Sequential(nn.Linear(4, 4), Picky(4, 4))

    graph = capture(model, BATCH).graph

    assert (3, 4) == graph.value["1"].shape
    assert model[1].weight.is_meta


def test_a_unit_that_is_too_large_for_a_trial_is_refused(monkeypatch):
    monkeypatch.setattr(shape_probe, "LARGEST_BYTES", 79)
    with torch.device("meta"):
        model = nn.Sequential(nn.Linear(4, 4), Picky(4, 4))

    with pytest.raises(CaptureError) as caught:
        capture(model, BATCH)

    line = f"{__file__}:{Picky.forward.__code__.co_firstlineno + 2}"
    assert ("needs_values", ("1", "1")) == (caught.value.kind, caught.value.about)
    assert line == caught.value.line


def test_of_what_is_too_large_for_a_trial_the_innermost_module_is_named(monkeypatch):
    """The innermost module is named, not the model around it."""
    monkeypatch.setattr(shape_probe, "LARGEST_BYTES", 79)
    with torch.device("meta"):
        model = nn.Sequential(Boxed(Boxed(Picky(4, 4))))

    with pytest.raises(CaptureError) as caught:
        capture(model, BATCH)

    assert ("needs_values", ("0.inner.inner", "0")) == (caught.value.kind, caught.value.about)


def test_modules_of_one_class_are_kept_whole_at_once(torn):
    """All modules of one class become units in the same run."""
    runs = []

    class Counted(Two):
        def between(self, h):
            runs.append(h)
            return item(h)

    model = nn.Sequential(*(Boxed(Counted()) for _ in range(4)))
    opened = {"0", "1", "2", "3"}

    found = capture(model, BATCH, opened=opened)

    assert [f"{at}.{part}" for at in range(4) for part in ("first", "inner", "last")] == [
        unit.name for unit in found.graph.units
    ]
    assert ["0.inner"] == [note.about for note in found.notes]
    assert 1 + 4 * 3 == len(runs)  # once as glue; as units once without numbers, twice with


def test_shapes_may_decide(torn):
    class Model(Two):
        def between(self, h):
            return h * 2 if h.shape[0] == 3 and h.dim() == 2 and len(h) > 1 else h.mean(0)

    assert torn(Model(), BATCH).relative_error <= 1e-6


def test_users_may_catch_their_own_errors(torn):
    class Model(Two):
        def between(self, h):
            try:
                return h.view(99, 99)
            except RuntimeError:
                return h * 2

    assert torn(Model(), BATCH).relative_error <= 1e-6


def test_an_error_of_the_users_is_named_with_its_line():
    class Model(Two):
        def between(self, h):
            return h @ torch.ones(7, 7)

    with pytest.raises(CaptureError) as caught:
        capture(Model(), BATCH)

    line = f"{__file__}:{Model.between.__code__.co_firstlineno + 1}"
    assert ("failed", line) == (caught.value.kind, caught.value.line)


def test_the_notes_say_what_was_kept_whole_and_why():
    class Inner(Two):
        def between(self, h):
            h.retain_grad()
            return h

    model = nn.Sequential(*(Boxed(Inner()) for _ in range(4)))
    (note,) = capture(model, BATCH, opened={"0", "1", "2", "3"}).notes

    line = Inner.between.__code__.co_firstlineno + 1
    assert (UNCUT_MODULE, "0.inner") == (note.kind, note.about)
    assert (
        "'0.inner' is one unit and so are 3 more of its class: it calls retain_grad() on a tensor"
        f" ({__file__}:{line})" == note.text
    )
