# SPDX-License-Identifier: Apache-2.0
"""Bytes that each stage keeps for the backward pass: as many as autograd keeps when it runs."""

from collections import OrderedDict

import pytest
import torch
import zoo
from torch import nn
from torch.autograd.graph import saved_tensors_hooks

from smdist.modelparallel.core.cluster import Device
from smdist.modelparallel.core.partition import partition
from smdist.modelparallel.torch.capture import arguments_of, capture
from smdist.modelparallel.torch.materialization.stage_module import StageModule
from smdist.modelparallel.torch.measure import estimate, measure

DEVICE = Device(flops_per_second=1e12, bytes_per_second=1e11)


class Block(nn.Module):
    """Keeps what it takes and what it returns."""

    def __init__(self, width):
        super().__init__()
        self.linear, self.relu = nn.Linear(width, width), nn.ReLU()

    def forward(self, x):
        return self.relu(self.linear(x))


def blocks():
    return capture(
        nn.Sequential(OrderedDict((f"b{i}", Block(32)) for i in range(4))), torch.randn(64, 32)
    )


def tiny(name):
    specimen = zoo.tiny(name)
    return capture(specimen.model, specimen.batch)


def kept_by_stage(captured, placement):
    """Bytes that autograd really keeps of each stage, each run from values of its own."""
    arguments = arguments_of(captured.example)
    batch, model = captured.program.bind(arguments), captured.model
    known = [*model.parameters(), *model.buffers(), *batch.values()]
    known = {tensor.untyped_storage()._cdata for tensor in known}
    sent, kept = {}, []
    for number in range(placement.num_stages):
        stage = StageModule(captured, placement, number)
        received = {name: sent[name] for name in stage.route.receives}
        received = {
            n: t.detach().clone().requires_grad_(t.requires_grad) for n, t in received.items()
        }
        found = {}

        def pack(tensor, found=found):
            storage = tensor.untyped_storage()
            found[storage._cdata] = storage
            return tensor

        with saved_tensors_hooks(pack, lambda tensor: tensor):
            sent |= stage(received, arguments)
        kept.append(sum(each.nbytes() for key, each in found.items() if key not in known))
    return kept


@pytest.mark.parametrize("name", ["blocks", "gpt2", "resnet"])
def test_a_stage_keeps_what_autograd_keeps_of_it(name):
    """A saved input of a stage counts there too, although the stage before saves it."""
    captured = blocks() if name == "blocks" else tiny(name)
    found = partition(captured.graph, estimate(captured, DEVICE), num_stages=4)

    forecast = [cost.saved_bytes for cost in found.costs]

    assert pytest.approx(kept_by_stage(captured, found.placement), rel=0.02) == forecast


def test_a_measurement_says_the_same():
    """Values are kept whatever tells their seconds."""
    captured = blocks()
    found, estimated = measure(captured, device="cpu"), estimate(captured, DEVICE)

    keeps = {name: cost.keeps for name, cost in found.nodes.items()}

    assert {name: cost.keeps for name, cost in estimated.nodes.items()} == keeps
    assert 3 == sum(len(each) == 2 for each in keeps.values())
