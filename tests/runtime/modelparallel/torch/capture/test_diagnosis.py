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


@pytest.mark.parametrize("device", ["cpu", "meta"])
@pytest.mark.parametrize(
    ("make", "batch", "words"),
    [
        (
            lambda: Model(5),
            BATCH,
            r"Model itself .*\(0: \(3, 4\)\).*:\d+: RuntimeError.*model\(batch\)",
        ),
        (Model, torch.ones(3, 5), r"itself fails on this example, \(0: \(3, 5\)\)"),
        (lambda: torch.nn.Sequential(torch.nn.Linear(4, 4)), torch.ones(3, 5), r"5\)\): Runtime"),
        (Glue, BATCH, r"Glue itself fails .*test_diagnosis\.py:\d+: RuntimeError"),
        (Typo, BATCH, r"Typo itself fails .*AttributeError: .*no attribute 'c'"),
        (Model, {"y": BATCH}, r"\(y: \(3, 4\)\).*TypeError.*argument 'y'.*model\(\*\*batch\)"),
    ],
)
def test_a_model_that_fails_by_itself_is_told_so(device, make, batch, words):
    with torch.device(device):
        model = make()

    with pytest.raises(CaptureError, match=words) as raised:
        capture(model, batch)

    assert "submodule" not in str(raised.value)


def test_a_model_that_runs_is_not_at_fault():
    class Real(Model):
        def forward(self, x):
            return self.b(self.a(x)) * float(x.detach().numpy().max())

    with pytest.raises(CaptureError, match="submodule") as raised:
        capture(Real(), BATCH)

    assert ".." not in str(raised.value)
    assert "itself" not in str(raised.value).partition(". ")[0]


def test_a_failing_model_is_as_it_was():
    class Counts(Model):
        def __init__(self):
            super().__init__(5)
            self.norm, self.runs = nn.BatchNorm1d(4), 0

        def forward(self, x):
            self.runs += 1
            return super().forward(self.norm(x))

    model, state = Counts(), torch.get_rng_state()

    with pytest.raises(CaptureError, match="itself fails"):
        capture(model, BATCH)

    assert 0 == model.runs == model.norm.num_batches_tracked.item()
    assert torch.equal(state, torch.get_rng_state())


def test_the_line_that_sets_an_attribute_is_named():
    class Counts(Model):
        def forward(self, x):
            h = self.b(x)
            self.n = 1
            return h

    line = Counts.forward.__code__.co_firstlineno + 2

    with pytest.raises(CaptureError, match=rf"test_diagnosis\.py:{line}: it changes .*'n'"):
        capture(Counts(), BATCH)


def test_a_cache_has_its_article():
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

    with pytest.raises(CaptureError, match="passes an EncoderCache from layer to layer"):
        capture(Caching(), BATCH)
