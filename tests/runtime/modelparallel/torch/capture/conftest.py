# SPDX-License-Identifier: Apache-2.0
"""Models cut wherever they can be cut: what is wrong across any cut shows up."""

import pytest
import torch

from smdist.modelparallel.core.placement import placed_units
from smdist.modelparallel.torch.capture import capture
from smdist.modelparallel.torch.verification.verify import verify


@pytest.fixture(autouse=True)
def _seed():
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        yield


@pytest.fixture
def torn():
    """Verify a model with each unit on a stage of its own."""

    def run(model, batch, **options):
        units = placed_units(capture(model, batch).graph)
        return verify(model, batch, stages=[[unit.name] for unit in units], **options)

    return run


@pytest.fixture
def units_of():
    """Names of the units that a model is made of."""

    def run(model, batch, **options):
        return [unit.name for unit in capture(model, batch, **options).graph.units]

    return run
