# SPDX-License-Identifier: Apache-2.0
"""Parameters and buffers for a trial run, in place of the model's own, which stay unchanged.

A stand-in has its own gradient and no hooks. On the model's device, the stand-in of a parameter
shares the parameter's memory; the stand-in of a tensor on meta has random values. Buffers are
always copied, so that BatchNorm's statistics do not change. Other attributes of modules are
restored afterwards as well.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode

from smdist.modelparallel.torch.capture.module_snapshot import snapshots
from smdist.modelparallel.torch.measure.trial import storages

_BLOCK = 1 << 20
_SPREAD = 0.02

Making = Callable[[Tensor], Tensor]


def real(device: torch.device) -> Making:
    """Return a maker of stand-ins on a device.

    A stand-in is a parameter's own memory, a copy of a buffer or from another device, or random.
    """

    def make(tensor: Tensor) -> Tensor:
        if tensor.is_meta:
            return _random(tensor, device)
        if isinstance(tensor, nn.Parameter):
            return tensor.detach().to(device)
        return tensor.detach().to(device, copy=True)

    return make


def fake(mode: FakeTensorMode, device: torch.device) -> Making:
    """Return a maker of stand-ins without numbers."""

    def make(tensor: Tensor) -> Tensor:
        with mode:
            return torch.empty_strided(
                tensor.shape, tensor.stride(), dtype=tensor.dtype, device=device
            )

    return make


def _random(tensor: Tensor, device: torch.device) -> Tensor:
    made = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device=device)
    if not tensor.is_floating_point():
        return made.zero_()
    if not isinstance(tensor, nn.Parameter):
        return made.fill_(1)  # for instance a running variance
    block = torch.randn(min(made.numel(), _BLOCK), device=device).mul_(_SPREAD).to(made.dtype)
    flat = made.as_strided((made.numel(),), (1,))
    for begin in range(0, made.numel(), _BLOCK):  # one block repeated is random enough, and fast
        part = flat[begin : begin + _BLOCK]
        part.copy_(block[: part.numel()])
    return made


@dataclass(frozen=True, slots=True, kw_only=True)
class StandIns:
    """Stand-ins that are in place.

    Attributes:
        held: Stand-ins that glue reads, by the name of the model's tensor.
        storages: Storages of all stand-ins.
        is_trained: True if one of them receives a gradient.
    """

    held: Mapping[str, Tensor]
    storages: set[int]
    is_trained: bool


@contextmanager
def standing_in(
    module: nn.Module | None, held: Mapping[str, Tensor], make: Making
) -> Iterator[StandIns]:
    """Put stand-ins in place of a module's parameters and buffers, and make those that glue reads.

    A trained stand-in begins with a gradient of zeros. A backward pass adds to it, as it does for
    all microbatches of a step but the first.
    """
    made: dict[int, Tensor] = {}
    parts = [] if module is None else list(module.modules())
    kept = snapshots(parts)
    try:
        for part in parts:
            _replace(part, make, made)
        others = {name: _once(tensor, make, made) for name, tensor in held.items()}
        yield StandIns(
            held=others,
            storages=storages(made.values()),
            is_trained=any(tensor.requires_grad for tensor in made.values()),
        )
    finally:
        for each in kept:
            each.restore()


def _replace(part: nn.Module, make: Making, made: dict[int, Tensor]) -> None:
    for found in (part._parameters, part._buffers, vars(part)):
        for name, tensor in list(found.items()):
            if isinstance(tensor, Tensor):
                found[name] = _once(tensor, make, made)  # type: ignore[assignment]


def _once(tensor: Tensor, make: Making, made: dict[int, Tensor]) -> Tensor:
    if id(tensor) not in made:
        stand_in = make(tensor)
        if isinstance(tensor, nn.Parameter):
            stand_in = nn.Parameter(stand_in, requires_grad=tensor.requires_grad)
            if tensor.requires_grad:
                stand_in.grad = torch.zeros_like(stand_in)
        made[id(tensor)] = stand_in
    return made[id(tensor)]
