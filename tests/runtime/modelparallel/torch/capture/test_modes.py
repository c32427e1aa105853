# SPDX-License-Identifier: Apache-2.0
"""Modes that a forward function enters hold for its own operations, on every stage."""

import pytest
import torch
from torch import nn

from smdist.modelparallel.torch.capture import capture


class Two(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 4)


def test_autocast_around_glue_is_entered_again(torn):
    class Model(Two):
        def forward(self, x):
            h = self.a(x)
            with torch.autocast("cpu", dtype=torch.bfloat16):
                h = h @ self.b.weight
            return self.b(h.float())

    found = torn(Model(), torch.randn(3, 4))

    assert 0.0 == found.output_error


def test_autocast_around_a_unit_is_entered_again(torn):
    class Model(Two):
        def forward(self, x):
            with torch.autocast("cpu", dtype=torch.bfloat16):
                h = self.a(x)
            return self.b(h.float())

    found = torn(Model(), torch.randn(3, 4))

    assert 0.0 == found.output_error
    assert found.relative_error <= 1e-6


def test_autocast_around_everything_is_the_callers(torn):
    class Model(Two):
        def forward(self, x):
            return self.b(self.a(x) @ self.a.weight)

    model = Model()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = torn(model, torch.randn(3, 4))
        captured = capture(model, torch.randn(3, 4))

    assert 0.0 == found.output_error
    assert "bfloat16" == captured.graph.value["b"].dtype


def test_autocast_may_be_left_in_glue(torn):
    class Model(Two):
        def forward(self, x):
            h = self.a(x)
            with torch.autocast("cpu", enabled=False):
                h = h.float() @ self.a.weight
            return self.b(h)

    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = torn(Model(), torch.randn(3, 4))

    assert 0.0 == found.output_error


def test_no_grad_stops_gradients_in_the_same_place(torn):
    class Model(Two):
        def forward(self, x):
            h = self.a(x)
            with torch.no_grad():
                scale = self.b(h).sum(-1, keepdim=True)
            return self.b(h * scale)

    found = torn(Model(), torch.randn(3, 4))

    assert found.relative_error <= 1e-6


def test_gradients_may_be_enabled_inside(torn):
    class Model(Two):
        def forward(self, x):
            with torch.no_grad():
                h = self.a(x)
                with torch.enable_grad():
                    return self.b(h)

    found = torn(Model(), torch.randn(3, 4))

    assert found.relative_error <= 1e-6


def test_inference_mode_in_glue_is_entered_again(torn):
    class Model(Two):
        def forward(self, x):
            with torch.inference_mode():
                offset = x.mean()
            return self.b(self.a(x) - offset.clone())

    found = torn(Model(), torch.randn(3, 4))

    assert found.relative_error <= 1e-6


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_a_model_runs_without_gradients_where_there_are_none(torn, mode):
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(inplace=True), nn.Linear(4, 4))

    with mode():
        found = torn(model, torch.randn(3, 4))

    assert 0.0 == found.output_error
    assert not any(value.has_gradient for value in found.captured.graph.value.values())


def test_detach_and_data_stop_gradients(torn):
    class Model(Two):
        def forward(self, x):
            h = self.a(x)
            return self.b(h + h.detach() + h.data)

    found = torn(Model(), torch.randn(3, 4))

    assert found.relative_error <= 1e-6
