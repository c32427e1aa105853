# SPDX-License-Identifier: Apache-2.0
"""Costs by running: each kind of call once, one after the other, on real numbers.

Results of a kind's first call stand in for those of all its twins, so nothing but one call and
the values that are still to be read is in memory at any time: a model that fits on no machine is
measured as long as each of its units fits.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from smdist.modelparallel.core.cost import NodeCost
from smdist.modelparallel.torch.measure.account import account
from smdist.modelparallel.torch.measure.parts import Found, Parts
from smdist.modelparallel.torch.measure.stand_in import real
from smdist.modelparallel.torch.measure.timing import timed
from smdist.modelparallel.torch.measure.workspace import workspace_bytes
from smdist.modelparallel.torch.program import Call, TensorFacts


class Measuring:
    """One measurement of a whole program.

    Args:
        parts: Of the captured model.
        values: The batch, by the names of its values.
        repeats: Timed runs of each kind.
        seconds: After about so long, what is left is timed once.
        title: For people who wait: what is measured.
    """

    def __init__(
        self,
        parts: Parts,
        values: Mapping[str, Tensor],
        *,
        repeats: int,
        seconds: float,
        title: str = "",
    ) -> None:
        self._parts = parts
        self._done = f"{title}: measured" if title else "measured"
        self._facts = parts.program.facts
        self._repeats = repeats
        self._end = time.perf_counter() + seconds
        self._make = real(parts.device)
        self._values = {
            name: as_captured(value, self._facts[name], parts.device)
            for name, value in values.items()
        }
        self._last = _last_readers(parts)

    def costs(self) -> Mapping[str, NodeCost]:
        """Of every call."""
        return self._parts.walk(self._look, self._proceed, self._done)

    def _look(self, call: Call, remaining: int) -> Found:
        device = self._parts.device
        seconds = max(self._end - time.perf_counter(), 0.0) / remaining
        inputs = [self._values[name] for name in call.reads]
        with self._parts.trial(call, inputs, self._make) as (trial, stand_ins):
            begin = time.perf_counter()
            found, run = account(trial, stand_ins.storages)
            results = [result.detach() for result in run.results]
            del run
            seconds -= time.perf_counter() - begin
            workspace = workspace_bytes(trial, found, device)
            times = timed(trial, device=device, repeats=self._repeats, seconds=seconds)
        cost = NodeCost(
            forward_seconds=times.forward,
            input_gradient_seconds=times.input_gradient,
            weight_gradient_seconds=times.backward - times.input_gradient,
            workspace_bytes=workspace,
        )
        return Found(cost=cost, account=found, results=results)

    def _proceed(self, call: Call, found: Found) -> None:
        for name, result in zip(call.writes, found.results, strict=True):
            self._values[name] = result.detach().requires_grad_(self._facts[name].requires_grad)
        for name in self._last[call.name]:
            del self._values[name]


def as_captured(value: Tensor, facts: TensorFacts, device: torch.device) -> Tensor:
    """A copy of a tensor of the batch on a device; where it is on meta, numbers for it."""
    if not value.is_meta:
        made = value.detach().to(device, copy=True)
    elif facts.dtype.is_floating_point:
        made = torch.randn(facts.shape, device=device).to(facts.dtype)
    else:
        made = torch.ones(facts.shape, dtype=facts.dtype, device=device)  # a token, a mask
    return made.requires_grad_(facts.requires_grad)


def _last_readers(parts: Parts) -> Mapping[str, Sequence[str]]:
    """Values that nobody reads after a call, by its name."""
    last: dict[str, str] = {}
    for call in parts.calls:
        last.update(dict.fromkeys([*call.writes, *call.reads], call.name))
    found: dict[str, list[str]] = {call.name: [] for call in parts.calls}
    for value, name in last.items():
        found[name].append(value)
    return found
