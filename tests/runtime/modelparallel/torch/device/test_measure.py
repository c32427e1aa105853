# SPDX-License-Identifier: Apache-2.0
"""Costs on a device are those of the device: its own time, and its allocator's memory."""

import test_device
import torch
from torch import nn

from smdist.modelparallel.torch.capture import capture
from smdist.modelparallel.torch.measure import measure
from smdist.modelparallel.torch.planning.local_cluster import cluster_of

WIDTH, ROWS = 64, 32
PAUSE = 0.02
TEMPORARY_BYTES = 1 << 20


class Busy(nn.Module):
    """Keeps the device busy, with a large temporary tensor."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        if type(x) is torch.Tensor and not x.is_meta:
            test_device.sleep(1000 * PAUSE)
            torch.empty(TEMPORARY_BYTES, dtype=torch.uint8, device=x.device)
        return self.linear(x)


def costs_of(place):
    """Measure a model that is created somewhere, for a batch on the second device."""
    torch.testdev.set_device(1)
    test_device.set_max_delay(0)
    model = nn.Sequential(nn.Linear(WIDTH, WIDTH), Busy()).to(place)
    before = torch.testdev.get_rng_state()
    costs = measure(capture(model, (torch.ones(ROWS, WIDTH, device="testdev:1"),)), repeats=3)
    world = cluster_of(2, model)
    nodes = {name.split("/")[-1]: cost for name, cost in costs.nodes.items()}
    return nodes, costs.device, torch.equal(before, torch.testdev.get_rng_state()), world


def test_times_and_memory_of_the_device(pipelines):
    """A model on the CPU is measured on the device of the batch, where its stages will be."""
    for place in ("testdev:1", "cpu"):
        nodes, name, is_undisturbed, world = pipelines.run(costs_of, place)
        plain, busy = nodes["0"], nodes["1"]

        assert ("testdev", True) == (name, is_undisturbed)
        assert 0 < plain.forward_seconds < PAUSE <= busy.forward_seconds < 3 * PAUSE
        assert 0 < busy.input_gradient_seconds < PAUSE
        assert busy.workspace_bytes >= TEMPORARY_BYTES > plain.workspace_bytes
        memory = world.device.memory_bytes
        assert (memory is None) == (place == "cpu")
        assert memory is None or memory == int(0.9 * (1 << 30))
