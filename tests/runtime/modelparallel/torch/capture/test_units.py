# SPDX-License-Identifier: Apache-2.0
"""Choice of units: the blocks that a model repeats, and modules without submodules elsewhere."""

import torch
from torch import nn

from smdist.modelparallel.torch.capture import capture

BATCH = torch.ones(3, 4)


class Block(nn.Module):
    """A residual block whose insides look like a list of blocks."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Sequential(Conv(), Conv())

    def forward(self, x):
        return x + self.layer(x)


class Conv(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear, self.act = nn.Linear(4, 4), nn.ReLU()

    def forward(self, x):
        return self.act(self.linear(x))


class Stage(nn.Module):
    def __init__(self, depth):
        super().__init__()
        self.layers = nn.Sequential(*(Block() for _ in range(depth)))

    def forward(self, x):
        return self.layers(x)


class Staged(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem, self.stages = Conv(), nn.ModuleList([Stage(2), Stage(1)])
        self.head = nn.Sequential(nn.Flatten(), nn.Linear(4, 2))

    def forward(self, x):
        x = self.stem(x)
        for stage in self.stages:
            x = stage(x)
        return self.head(x)


def test_residual_blocks_in_stages_are_units(units_of):
    names = units_of(Staged(), BATCH)

    assert [
        "stem.linear",
        "stem.act",
        "stages.0.layers.0",
        "stages.0.layers.1",
        "stages.1.layers.0",
        "head.0",
        "head.1",
    ] == names


def test_a_unit_is_opened_by_name(units_of):
    names = units_of(Staged(), BATCH, opened={"stages.0.layers.1"})

    assert ["stages.0.layers.1.layer.0", "stages.0.layers.1.layer.1"] == names[3:5]


def test_the_parents_of_an_opened_unit_are_opened(units_of):
    """Without it, block 1 would be one unit: it needs its input until its end."""
    blocks = nn.Sequential(Block(), Block())
    names = units_of(blocks, BATCH, opened={"1.layer.0"})

    assert "1" in units_of(blocks, BATCH)
    assert ["1.layer.0.linear", "1.layer.0.act", "1.layer.1"] == names[-3:]


def test_a_module_is_closed_by_name(units_of):
    names = units_of(Staged(), BATCH, closed={"stem", "stages.0", "head"})

    assert ["stem", "stages.0", "stages.1.layers.0", "head"] == names


def test_modules_of_pytorch_itself_are_not_opened(units_of):
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.attention = nn.MultiheadAttention(4, 2, batch_first=True)
            self.encoder = nn.TransformerEncoder(
                nn.TransformerEncoderLayer(4, 2, 8, batch_first=True), 2
            )

        def forward(self, x):
            return self.encoder(self.attention(x, x, x)[0])

    names = units_of(Model(), torch.ones(2, 3, 4))

    assert ["attention", "encoder.layers.0", "encoder.layers.1"] == names


def test_modules_that_never_run_are_no_units(units_of):
    model = Staged()
    model.spare = nn.Linear(4, 4)

    assert "spare" not in units_of(model, BATCH)


def test_a_model_on_the_meta_device_looks_the_same():
    with torch.device("meta"):
        model = Staged()

    found = capture(model, BATCH).graph
    there = capture(model, torch.ones(3, 4, device="meta")).graph

    assert capture(Staged(), BATCH).graph == found
    assert found == there
    assert all(parameter.is_meta for parameter in model.parameters())
