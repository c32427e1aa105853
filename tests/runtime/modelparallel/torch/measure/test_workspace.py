# SPDX-License-Identifier: Apache-2.0
"""Memory on an accelerator is divided into saved memory and workspace."""

import pytest
import torch
from measuring import accounted, standing_in, trial_of
from torch import nn

from smdist.modelparallel.torch.measure.measured import workspace_bytes

KEPT = 4 * 8 * 8  # ReLU keeps its result


@pytest.mark.parametrize(
    ("forward_peak", "backward_peak", "expected"),
    [(1000 + KEPT + 700, 1500, 700), (1000 + KEPT, 1900, 900), (1000, 1000, 0)],
    ids=["forward", "backward", "nothing"],
)
def test_the_allocators_peak_counts(monkeypatch, forward_peak, backward_peak, expected):
    """The worse of both passes, each beyond what was there before it and what it keeps."""
    peaks = iter([forward_peak, backward_peak])
    monkeypatch.setattr(torch.accelerator, "synchronize", lambda device: None)
    monkeypatch.setattr(torch.accelerator, "reset_peak_memory_stats", lambda device: None)
    monkeypatch.setattr(torch.accelerator, "memory_allocated", lambda device: 1000)
    monkeypatch.setattr(torch.accelerator, "max_memory_allocated", lambda device: next(peaks))
    module, x = nn.ReLU(), torch.ones(8, 8, requires_grad=True)
    account = accounted(module, x)
    with standing_in(module):
        found = workspace_bytes(trial_of(module, x), account, torch.device("cuda"))

    assert expected == found
