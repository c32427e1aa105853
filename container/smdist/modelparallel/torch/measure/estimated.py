# SPDX-License-Identifier: Apache-2.0
"""Estimate of costs without the device: each kind of call runs once, on fake tensors.

The floating-point operations and bytes of a call are divided by the device's peak speeds. Units
that read the values of their inputs cannot run on fake tensors; they run once on random numbers.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensorMode,
    UnsupportedOperatorException,
)

from smdist.modelparallel.core.cluster import Device
from smdist.modelparallel.core.cost import NodeCost
from smdist.modelparallel.torch.measure.account import Account, account
from smdist.modelparallel.torch.measure.op_counter import seconds
from smdist.modelparallel.torch.measure.parts import Parts, TriedCall
from smdist.modelparallel.torch.measure.stand_in import Making, fake, real
from smdist.modelparallel.torch.program.program import Call, TensorFacts

_NEEDS_VALUES = (
    DataDependentOutputException,
    DynamicOutputShapeException,
    UnsupportedOperatorException,
)


class Estimating:
    """Estimator of the costs of all calls of a program.

    Args:
        parts: Calls in the forward pass.
        device: Device to estimate for, with its peak speeds.
    """

    def __init__(self, parts: Parts, device: Device) -> None:
        self._parts, self._speed = parts, device
        self._fakes = FakeTensorMode(allow_non_fake_inputs=True)

    def costs(self) -> Mapping[str, NodeCost]:
        """Return the estimated cost of every call, by the call's name."""
        return self._parts.walk(self._look, lambda *_: None, "estimated")

    def _look(self, call: Call, _: int) -> TriedCall:
        found = self._account(call)
        forward, backward = (
            seconds(found.forward, self._speed),
            seconds(found.backward, self._speed),
        )
        to_inputs = min(seconds(found.input_gradient, self._speed), backward)
        cost = NodeCost(
            forward_seconds=forward,
            input_gradient_seconds=to_inputs,
            weight_gradient_seconds=backward - to_inputs,
            workspace_bytes=found.workspace_bytes,
        )
        return TriedCall(cost=cost, account=found)

    def _account(self, call: Call) -> Account:
        device = self._parts.device
        if not call.is_probed:
            try:
                with self._fakes:
                    return self._try(call, fake(self._fakes, device))
            except _NEEDS_VALUES:
                pass
        return self._try(call, real(device))

    def _try(self, call: Call, make: Making) -> Account:
        facts = self._parts.program.facts
        device, slices = self._parts.device, self._parts.slices
        inputs = [slices.held(name, made_up(facts[name], device)) for name in call.reads]
        with self._parts.trial(call, inputs, make) as (trial, stand_ins):
            return account(trial, stand_ins.storages)[0]


def made_up(facts: TensorFacts, device: torch.device) -> Tensor:
    """Return a tensor with made-up values: random numbers for a floating-point dtype, else ones.

    Args:
        facts: Shape, strides, dtype and requires_grad of the new tensor.
        device: Device of the new tensor.
    """
    made = torch.empty_strided(facts.shape, facts.stride, dtype=facts.dtype, device=device)
    if facts.dtype.is_floating_point:
        made.normal_()
    else:
        made.fill_(1)
    return made.requires_grad_(facts.requires_grad)
