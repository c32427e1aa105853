# SPDX-License-Identifier: Apache-2.0
"""Costs on a device are those of the device: its own time, and its allocator's memory."""

import accelerator
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
            accelerator.sleep(1000 * PAUSE)
            torch.empty(TEMPORARY_BYTES, dtype=torch.uint8, device=x.device)
        return self.linear(x)


def costs_of(place):
    """Measure a model that is created somewhere, for a batch on the second device."""
    device = torch.device(accelerator.second_device())
    torch.accelerator.set_device_index(device.index)
    module = torch.get_device_module(device)
    if not accelerator.IS_GPU:
        test_device.set_max_delay(0)
    model = nn.Sequential(nn.Linear(WIDTH, WIDTH), Busy()).to(
        device if place == "device" else place
    )
    before = module.get_rng_state()
    costs = measure(capture(model, (torch.ones(ROWS, WIDTH, device=device),)), repeats=3)
    world = cluster_of(2, model)
    nodes = {name.split("/")[-1]: cost for name, cost in costs.nodes.items()}
    return nodes, costs.device, torch.equal(before, module.get_rng_state()), world


def test_times_and_memory_of_the_device(pipelines):
    """A model on the CPU is measured on the device of the batch, where its stages will be."""
    for place in ("device", "cpu"):
        nodes, name, is_undisturbed, world = pipelines.run(costs_of, place)
        plain, busy = nodes["0"], nodes["1"]

        assert is_undisturbed
        assert accelerator.IS_GPU or name == accelerator.NAME
        assert 0 < plain.forward_seconds < PAUSE <= busy.forward_seconds < 3 * PAUSE
        assert 0 < busy.input_gradient_seconds < PAUSE
        assert busy.workspace_bytes >= TEMPORARY_BYTES > plain.workspace_bytes
        memory = world.device.memory_bytes
        assert (memory is None) == (place == "cpu")
        assert accelerator.IS_GPU or memory is None or memory == int(0.9 * (1 << 30))
