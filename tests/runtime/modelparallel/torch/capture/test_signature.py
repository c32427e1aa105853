# SPDX-License-Identifier: Apache-2.0
"""A program serves another batch exactly where its key is the same."""

import pytest
import torch
from torch import nn

from smdist.modelparallel.torch.capture import arguments_of, capture, signature

BATCH = {"x": torch.ones(3, 4), "scale": 2.0}


class Settings:
    def __init__(self):
        self.doubles = False


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer, self.drop = nn.Linear(4, 4), nn.Dropout()
        self.factor, self.settings, self.sizes = 1.0, Settings(), [1, 2]

    def forward(self, x, scale):
        return self.drop(self.layer(x)) * self.factor * scale


def key_of(model, batch=None):
    return signature(model, arguments_of(BATCH if batch is None else batch))


def test_other_numbers_of_the_same_shape_share_a_program():
    model = Model()

    captured = capture(model, BATCH)

    assert captured.serves({**BATCH, "x": torch.zeros(3, 4)})
    assert not captured.serves({**BATCH, "x": torch.zeros(2, 4)})
    assert captured.key == key_of(model)
    assert hash(captured.key) == hash(key_of(model))


@pytest.mark.parametrize(
    "change",
    [
        lambda model: model.eval(),
        lambda model: model.drop.eval(),
        lambda model: setattr(model, "factor", 2.0),
        lambda model: setattr(model.settings, "doubles", True),
        lambda model: model.sizes.append(3),
        lambda model: model.layer.bias.requires_grad_(False),
        lambda model: model.register_forward_hook(lambda module, args, output: output),
    ],
)
def test_another_setting_of_the_model_needs_another_program(change):
    model = Model()
    before = key_of(model)

    change(model)

    assert before != key_of(model)


@pytest.mark.parametrize(
    "batch",
    [
        {**BATCH, "x": torch.ones(2, 4)},
        {**BATCH, "x": torch.ones(3, 4, dtype=torch.float64)},
        {**BATCH, "x": torch.ones(3, 4, requires_grad=True)},
        {**BATCH, "scale": 3.0},
        {**BATCH, "scale": 2},
        {"x": BATCH["x"]},
    ],
)
def test_another_kind_of_batch_needs_another_program(batch):
    model = Model()

    assert key_of(model) != key_of(model, batch)


@pytest.mark.parametrize(
    "mode", [torch.no_grad, torch.inference_mode, lambda: torch.autocast("cpu")]
)
def test_another_mode_needs_another_program(mode):
    model = Model()
    before = key_of(model)

    with mode():
        inside = key_of(model)

    assert before != inside
