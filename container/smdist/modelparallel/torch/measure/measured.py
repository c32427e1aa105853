# SPDX-License-Identifier: Apache-2.0
"""Measurement of costs: modules and functions of a model run one by one, on real tensors.

If several modules or functions cost the same, only the first of them is run. A model that is too
large for this machine can be measured, if each of its undivided modules fits.

Workspace is memory that is needed only during a run. On an accelerator it is read from the
allocator.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from smdist.modelparallel.core.cost import NodeCost
from smdist.modelparallel.torch.accelerator import is_accelerator
from smdist.modelparallel.torch.measure.account import Account, account
from smdist.modelparallel.torch.measure.parts import Parts, TriedCall
from smdist.modelparallel.torch.measure.stand_in import real
from smdist.modelparallel.torch.measure.timing import timed
from smdist.modelparallel.torch.measure.trial import Trial
from smdist.modelparallel.torch.program.program import Call, TensorFacts


def workspace_bytes(trial: Trial, found: Account, device: torch.device) -> int:
    """Return the bytes that a trial needs only while it runs, without those kept for backward.

    On an accelerator, the trial runs again, and the bytes are read from the allocator's largest
    amount. Libraries have their own workspace since the first run. On the CPU, the bytes in `found`
    are returned.

    Args:
        trial: Call to run, while its module has temporary parameters and buffers.
        found: Operations and memory that were counted in a first run.
        device: Device of the trial.
    """
    if not is_accelerator(device):
        return found.workspace_bytes
    new = {out.storage: out.num_bytes for out in found.outputs if out.input is None and out.is_kept}
    kept = found.hidden_bytes + sum(new.values())
    run = trial.prepared()
    before = _reset(device)
    run.forward()
    forward = torch.accelerator.max_memory_allocated(device) - before - kept
    if not run.seed():
        return max(forward, 0)
    before = _reset(device)
    run.backward()
    return max(forward, torch.accelerator.max_memory_allocated(device) - before, 0)


def _reset(device: torch.device) -> int:
    torch.accelerator.synchronize(device)
    torch.accelerator.reset_peak_memory_stats(device)
    return int(torch.accelerator.memory_allocated(device))


class Measuring:
    """Measurement of the costs of all calls in a model's forward pass.

    Args:
        parts: Calls in the forward pass.
        values: Tensors of the batch, by name.
        repeats: Number of timed runs of a call.
        seconds: Time after which each remaining call is timed only once.
        title: Words at the beginning of progress lines.
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
        """Return the measured cost of every call, by the call's name."""
        return self._parts.walk(self._look, self._proceed, self._done)

    def _look(self, call: Call, remaining: int) -> TriedCall:
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
        return TriedCall(cost=cost, account=found, results=results)

    def _proceed(self, call: Call, found: TriedCall) -> None:
        for name, result in zip(call.writes, found.results, strict=True):
            self._values[name] = result.detach().requires_grad_(self._facts[name].requires_grad)
        for name in self._last[call.name]:
            del self._values[name]


def as_captured(value: Tensor, facts: TensorFacts, device: torch.device) -> Tensor:
    """Return a copy of a tensor of the batch on a device.

    A tensor on the meta device has no values. Its copy has random values if its dtype is
    floating-point, and ones if not.

    Args:
        value: Tensor of the batch.
        facts: Shape, dtype and requires_grad of the copy.
        device: Device of the copy.
    """
    if not value.is_meta:
        made = value.detach().to(device, copy=True)
    elif facts.dtype.is_floating_point:
        made = torch.randn(facts.shape, device=device).to(facts.dtype)
    else:
        made = torch.ones(facts.shape, dtype=facts.dtype, device=device)  # for tokens or masks
    return made.requires_grad_(facts.requires_grad)


def _last_readers(parts: Parts) -> Mapping[str, Sequence[str]]:
    """Return the values that can be freed after each call, since no later call reads them.

    Returns:
        Names of these values, by the call's name.
    """
    last: dict[str, str] = {}
    for call in parts.calls:
        last.update(dict.fromkeys([*call.writes, *call.reads], call.name))
    found: dict[str, list[str]] = {call.name: [] for call in parts.calls}
    for value, name in last.items():
        found[name].append(value)
    return found
