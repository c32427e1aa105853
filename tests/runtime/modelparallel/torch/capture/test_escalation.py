# SPDX-License-Identifier: Apache-2.0
"""Modules that cannot be recorded become units, and the search for them ends."""

import pytest
import torch
from torch import nn

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


NUMBERS = [branch, item, to_numpy, nonzero, swallowed, listed]


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

    with pytest.raises(CaptureError, match=r"Model .*test_escalation\.py:\d+.*submodule"):
        capture(Model(), BATCH)


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

    with pytest.raises(CaptureError, match="'choose' returns a result whose shapes"):
        capture(Model(), BATCH)


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

    with pytest.raises(ValueError, match=r"'rare' returned 1\.0 where it returned 0\.0"):
        verify(Model(), torch.full((3, 4), 1e6))


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

    words = r"'1' needs the values .*test_escalation\.py:\d+.*over 79 bytes.*with values.*--measure"
    with pytest.raises(CaptureError, match=words):
        capture(model, BATCH)


def test_of_what_is_too_large_for_a_trial_the_innermost_module_is_named(monkeypatch):
    """The innermost module is named, not the model around it."""
    monkeypatch.setattr(shape_probe, "LARGEST_BYTES", 79)
    with torch.device("meta"):
        model = nn.Sequential(Boxed(Boxed(Picky(4, 4))))

    with pytest.raises(CaptureError, match=r"'0\.inner\.inner' needs .* parameters of '0'"):
        capture(model, BATCH)


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
    assert "and so are 3 more of its class" in found.notes[0].text
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

    with pytest.raises(CaptureError, match=r"test_escalation\.py:\d+: RuntimeError"):
        capture(Model(), BATCH)


def test_the_notes_say_what_was_kept_whole_and_why():
    class Inner(Two):
        def between(self, h):
            return item(h)

    notes = capture(Boxed(Inner()), BATCH).notes

    assert 1 == len(notes)
    assert "test_escalation.py" in notes[0].text
