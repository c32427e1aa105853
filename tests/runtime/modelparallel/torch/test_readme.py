# SPDX-License-Identifier: Apache-2.0
"""The lines of the README that split a model run as they stand there."""

import re
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

README = Path(__file__).parents[4] / "README.md"


@pytest.fixture
def lines():
    blocks = re.findall(r"^```python\n(.*?)^```", README.read_text(), re.S | re.M)
    (block,) = (block for block in blocks if "@smp.step" in block)
    return block


def test_ten_lines_train_a_model(lines):
    """The ten lines also train in one process, since the job determines the number of ranks."""
    assert 10 >= len([line for line in lines.splitlines() if line.strip()])
    names = {
        "torch": torch,
        "cross_entropy": cross_entropy,
        "model": nn.Sequential(nn.Linear(4, 2)),
    }
    code = lines.replace("smp.init()", 'smp.init({"pipeline_parallel_degree": 1})')
    x, y = torch.randn(8, 4), torch.zeros(8, dtype=torch.long)
    exec(compile(code, str(README), "exec"), names)
    try:
        losses = []
        for _ in range(20):
            names["optimizer"].zero_grad()
            losses.append(names["train_step"](names["model"], x, y).reduce_mean().item())
            names["optimizer"].step()
    finally:
        names["smp"].end()

    assert losses[-1] < losses[0]
