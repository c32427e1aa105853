# SPDX-License-Identifier: Apache-2.0
"""smp.is_tracing(), which a model asks about its own run."""

import pytest
import torch
from torch import nn

from smdist.modelparallel.torch.capture import CaptureError, capture
from smdist.modelparallel.torch.program.tracing_flag import is_tracing

ANSWERS = []  # not the model's: forward functions that change their model are refused


class _Curious(nn.Module):
    def __init__(self, *, fails=False):
        super().__init__()
        self.layer = nn.Linear(2, 2)
        self.fails = fails

    def forward(self, x):
        ANSWERS.append(is_tracing())
        if self.fails:
            raise RuntimeError("stop")
        return self.layer(x)


def test_a_model_is_traced_while_it_is_captured_and_not_when_it_runs():
    """True in the recorded run alone, and False after it."""
    ANSWERS.clear()
    model = _Curious()
    capture(model, torch.ones(1, 2))
    captured = list(ANSWERS)
    model(torch.ones(1, 2))

    assert [True] == sorted(set(captured))
    assert [False] == ANSWERS[len(captured) :]
    assert not is_tracing()


def test_a_capture_that_fails_ends_the_tracing():
    """The flag does not outlive an error."""
    with pytest.raises((CaptureError, RuntimeError)):
        capture(_Curious(fails=True), torch.ones(1, 2))

    assert not is_tracing()
