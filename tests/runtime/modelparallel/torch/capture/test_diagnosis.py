# SPDX-License-Identifier: Apache-2.0
"""Tests that an error of the model itself is reported as such, not as an error of capture."""

import pytest
import torch
from torch import nn

from smdist.modelparallel.torch.capture import CaptureError, capture

BATCH = torch.ones(3, 4)


class Model(nn.Module):
    def __init__(self, width=4):
        super().__init__()
        self.a, self.b = nn.Linear(4, 4), nn.Linear(width, 4)

    def forward(self, x):
        return self.b(self.a(x))


class Glue(Model):
    def forward(self, x):
        return self.b(self.a(x)) + torch.ones(5)


class Typo(Model):
    def forward(self, x):
        return self.b(self.c(x))


class Named(nn.Linear):
    def __init__(self):
        super().__init__(4, 4)

    def forward(self, x, mask):
        raise ValueError("no mask.")


def line_in(model):
    """Return file and number of the first line in a model's forward function."""
    return f"{__file__}:{model.forward.__code__.co_firstlineno + 1}"


@pytest.mark.parametrize("device", ["cpu", "meta"])
@pytest.mark.parametrize(
    ("make", "batch", "cause", "line"),
    [
        (lambda: Model(5), BATCH, RuntimeError, line_in(Model)),
        (Model, torch.ones(3, 5), RuntimeError, line_in(Model)),
        (lambda: nn.Sequential(nn.Linear(4, 4)), torch.ones(3, 5), RuntimeError, ""),
        (Glue, BATCH, RuntimeError, line_in(Glue)),
        (Typo, BATCH, AttributeError, line_in(Typo)),
        (Model, {"y": BATCH}, TypeError, ""),
    ],
)
def test_a_model_that_fails_by_itself_is_told_so(device, make, batch, cause, line):
    with torch.device(device):
        model = make()

    with pytest.raises(CaptureError) as raised:
        capture(model, batch)

    assert ("failed", line) == (raised.value.kind, raised.value.line)
    assert cause is type(raised.value.__cause__)


def test_the_text_of_a_model_that_fails_by_itself_has_the_shapes_and_the_call():
    with pytest.raises(CaptureError) as raised:
        capture(Named(), {"x": BATCH, "mask": torch.ones(2)})

    assert (
        f"Named itself fails on this example, (x: (3, 4), mask: (2,)), at {line_in(Named)}:"
        " ValueError: no mask. Run model(**batch) by itself, and correct the model or the example."
        == str(raised.value)
    )


def test_a_model_that_runs_is_not_at_fault():
    class Real(Model):
        def forward(self, x):
            return self.b(self.a(x)) * float(x.detach().numpy().max())

    with pytest.raises(CaptureError) as raised:
        capture(Real(), BATCH)

    assert ("failed_in_capture", line_in(Real)) == (raised.value.kind, raised.value.line)


def test_a_failing_model_is_as_it_was():
    class Counts(Model):
        def __init__(self):
            super().__init__(5)
            self.norm, self.runs = nn.BatchNorm1d(4), 0

        def forward(self, x):
            self.runs += 1
            return super().forward(self.norm(x))

    model, state = Counts(), torch.get_rng_state()

    with pytest.raises(CaptureError) as raised:
        capture(model, BATCH)

    assert "failed" == raised.value.kind

    assert 0 == model.runs == model.norm.num_batches_tracked.item()
    assert torch.equal(state, torch.get_rng_state())


def test_the_line_that_sets_an_attribute_is_named():
    class Counts(Model):
        def forward(self, x):
            h = self.b(x)
            self.n = 1
            return h

    line = Counts.forward.__code__.co_firstlineno + 2

    with pytest.raises(CaptureError) as raised:
        capture(Counts(), BATCH)

    assert ("changed_attribute", ("n",)) == (raised.value.kind, raised.value.about)
    assert f"{__file__}:{line}" == raised.value.line


def test_a_cache_is_refused_and_its_text_is_good_english():
    class EncoderCache:
        """Cache of an encoder-decoder model."""

    class Writing(nn.Linear):
        def forward(self, x, cache):
            cache.kept = super().forward(x)
            return cache.kept

    class Caching(Model):
        def __init__(self):
            super().__init__()
            self.b = Writing(4, 4)

        def forward(self, x):
            return self.b(self.a(x), EncoderCache())

    with pytest.raises(CaptureError) as raised:
        capture(Caching(), BATCH)

    assert "cache" == raised.value.kind
    assert (
        "the model passes an EncoderCache from layer to layer at"
        f" {line_in(Caching)}: each layer writes to it, and layers on other stages would not"
        " receive these writes. Pass use_cache=False to the model, or set"
        " model.config.use_cache = False." == str(raised.value)
    )
