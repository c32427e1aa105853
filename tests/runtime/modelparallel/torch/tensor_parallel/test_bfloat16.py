# SPDX-License-Identifier: Apache-2.0
"""In bfloat16, split layers are as far from exact gradients as one process is: by rounding."""

from contextlib import nullcontext
from copy import deepcopy
from statistics import median

import pytest
import torch
from matrix.case import loss_of
from tensor_matrix.tensor_case import TensorCase, specimen_of
from tensor_models import whole

from smdist.modelparallel.torch.capture import arguments_of
from smdist.modelparallel.torch.tensor_parallel import find
from smdist.modelparallel.torch.tensor_parallel.simulated_peers import SimulatedRanks
from smdist.modelparallel.torch.tensor_parallel.split_model import split_model


def gradients(model, call, *, is_half):
    with torch.autocast("cpu", torch.bfloat16) if is_half else nullcontext():
        loss = loss_of(model(*call[0], **call[1]))
    loss.backward()
    return {name: whole(p.grad, p).double() for name, p in model.named_parameters()}


def alone(name, dtype, *, is_half=False):
    specimen = specimen_of(TensorCase(model=name, dtype=dtype))
    return gradients(specimen.model, arguments_of(specimen.batch), is_half=is_half)


def split(name, *, is_half):
    """Train on two simulated ranks of one process, so that messages change nothing."""
    specimen, ranks = specimen_of(TensorCase(model=name)), SimulatedRanks(2)
    call = arguments_of(specimen.batch)
    plan, copies = find(specimen.model, call, 2), [deepcopy(specimen.model) for _ in range(2)]

    def work(rank):
        split_model(copies[rank], plan, ranks.peers(rank))
        return gradients(copies[rank], call, is_half=is_half)

    return ranks.run(work)[0]


def errors(found, exact):
    return [float((found[key] - each).norm() / each.norm()) for key, each in exact.items()]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["t5", "llama"])
def test_split_layers_round_as_one_process_does(name):
    exact = alone(name, "float64")
    one = errors(alone(name, "float32", is_half=True), exact)
    parts = errors(split(name, is_half=True), exact)

    assert median(parts) < 2 * median(one)
    assert max(parts) < 2 * max(one)
    assert max(errors(split(name, is_half=False), exact)) < 1e-5
