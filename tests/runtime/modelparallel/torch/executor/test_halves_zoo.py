# SPDX-License-Identifier: Apache-2.0
"""Stages of ten models, their backward passes in halves."""

import pytest
import torch
import zoo

from smdist.modelparallel.torch.capture import arguments_of, capture
from smdist.modelparallel.torch.executor.split_backward import backward_inputs
from smdist.modelparallel.torch.materialization.stage_module import StageModule
from smdist.modelparallel.torch.randomness import RngStream
from smdist.modelparallel.torch.verification.verify_request import placement_of

STAGES = 3


@pytest.mark.parametrize("name", zoo.TEN)
def test_stages_have_the_gradients_of_one_backward_pass(name):
    specimen = zoo.tiny(name, dropout=0.1)
    captured = capture(specimen.model, specimen.batch)
    placement = placement_of(captured.graph, STAGES, None)
    values, waited = {}, 0
    for number in range(STAGES):
        stage = StageModule(captured, placement, number)
        expected, found, early = both_ways(stage, values, arguments_of(specimen.batch))
        waited += sum(each is None for each in early.values()) > 0

        assert expected.keys() == found.keys()
        assert all(_error(expected[each], found[each]) <= 1e-6 for each in expected)
    assert STAGES == waited, "something waits on each stage"


def both_ways(stage, values, arguments):
    """Gradients of one pass, those of two halves, and parameters' after the first half."""
    received = {name: values[name].detach() for name in stage.route.receives}
    results = []
    for is_split in (False, True):
        stage.zero_grad()
        own = {
            name: each.clone().requires_grad_(each.is_floating_point())
            for name, each in received.items()
        }
        kept = stage(own, arguments, RngStream().around)
        roots = _roots(stage, kept)
        early = {}
        if is_split:
            gradients, rest = backward_inputs(roots, list(own.values()))
            early = {name: parameter.grad for name, parameter in stage.named_parameters()}
            rest.backward_parameters()
        else:
            torch.autograd.backward([each for each, _ in roots], [each for _, each in roots])
            gradients = [each.grad for each in own.values()]
        trained = {name: _copy(each.grad) for name, each in stage.named_parameters()}
        results.append({**dict(zip(own, gradients, strict=True)), **trained})
    values |= kept
    return *results, early


def _roots(stage, kept):
    generator = torch.Generator().manual_seed(0)
    names = stage.route.keeps
    tensors = [kept[name] for name in names if kept[name].requires_grad]
    return [(each, torch.randn(each.shape, generator=generator)) for each in tensors]


def _copy(gradient):
    return None if gradient is None else gradient.clone()


def _error(one, other):
    if one is None or other is None:
        return 0.0 if one is other else float("inf")
    return float((one - other).norm() / one.norm().clamp(min=1e-30))
