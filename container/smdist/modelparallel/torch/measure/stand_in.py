# SPDX-License-Identifier: Apache-2.0
"""Temporary parameters and buffers (stand-ins), so that a trial run does not change the model.

A stand-in has its own gradient and no hooks. If the trial runs on the model's device, the stand-in
of a parameter shares the parameter's memory. Buffers are always copied, so that BatchNorm's
statistics do not change. If a parameter or buffer is on meta, its stand-in has made-up values.

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
    """Return a function that makes a temporary replacement of a parameter or buffer on `device`.

    * For a parameter on this device, the replacement shares the parameter's memory.
    * For a parameter on another device, and for any buffer, the replacement is a copy.
    * For a parameter on the meta device, the replacement has random values; for a buffer there, it
      has ones. If the dtype is not floating-point, it has zeros.
    """

    def make(tensor: Tensor) -> Tensor:
        if tensor.is_meta:
            return _random(tensor, device)
        if isinstance(tensor, nn.Parameter):
            return tensor.detach().to(device)
        return tensor.detach().to(device, copy=True)

    return make


def fake(mode: FakeTensorMode, device: torch.device) -> Making:
    """Return a function that makes a fake tensor as temporary replacement of a tensor.

    The fake tensor has the shape, strides and dtype of the tensor, but no values.

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
    """Temporary parameters and buffers (stand-ins) of one call that is run by itself.

    Attributes:
        held: Stand-ins that are passed to the call as arguments, by the name of the replaced
            tensor.
        storages: Ids of the storages of all stand-ins.
        is_trained: True if a stand-in requires a gradient.
    """

    held: Mapping[str, Tensor]
    storages: set[int]
    is_trained: bool


@contextmanager
def standing_in(
    module: nn.Module | None, held: Mapping[str, Tensor], make: Making
) -> Iterator[StandIns]:
    """Replace a module's parameters and buffers by temporary ones (stand-ins) within the block.

    Gradients of stand-ins are zeros at first.

    Args:
        module: Module to change until the end of the block; None to change no module.
        held: Further tensors of the model that get stand-ins, by name.
        make: Function that gets a tensor of the model, and returns the stand-in.

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
