# SPDX-License-Identifier: Apache-2.0
"""Stand-ins: temporary parameters and buffers for a trial run, so that the model's own stay as is.

A stand-in has its own gradient and no hooks. On the model's device, the stand-in of a parameter
shares the parameter's memory. Buffers are always copied, so that BatchNorm's statistics do not
change. The stand-in of a tensor on meta has random values.

Other attributes of modules are restored after the run as well.
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
    """Return a function that makes the stand-in of a parameter or buffer on a device.

    * A parameter on that device shares its memory with its stand-in.
    * A parameter on another device, and any buffer, is copied.
    * A parameter on meta is replaced by random numbers, a buffer on meta by ones or zeros.
    """

    def make(tensor: Tensor) -> Tensor:
        if tensor.is_meta:
            return _random(tensor, device)
        if isinstance(tensor, nn.Parameter):
            return tensor.detach().to(device)
        return tensor.detach().to(device, copy=True)

    return make


def fake(mode: FakeTensorMode, device: torch.device) -> Making:
    """Return a function that makes the fake stand-in of a tensor: without values.

    Args:
        mode: Mode in which the fake tensors are made.
        device: Device that the fake tensors report.
    """

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
    """Temporary parameters and buffers of one trial.

    Attributes:
        held: Stand-ins of tensors that are arguments of the call, by the name of the model's
            tensor; those in the call's module are not listed.
        storages: Numbers of the storages of all stand-ins; see `storage_of`.
        is_trained: True if one of them receives a gradient.
    """

    held: Mapping[str, Tensor]
    storages: set[int]
    is_trained: bool


@contextmanager
def standing_in(
    module: nn.Module | None, held: Mapping[str, Tensor], make: Making
) -> Iterator[StandIns]:
    """Replace a module's parameters and buffers by stand-ins within the block.

    A stand-in that requires a gradient begins with a gradient of zeros, to which the backward pass
    adds. In the same way, all microbatches of a step but the first add to a gradient.

    Args:
        module: Module to change; None for a call of a function.
        held: Further tensors of the model that the call reads, by name.
        make: Function that makes a stand-in.

    Yields:
        The stand-ins.
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
