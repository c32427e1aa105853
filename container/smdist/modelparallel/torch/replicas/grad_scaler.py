# SPDX-License-Identifier: Apache-2.0
"""Loss scaling for float16: an overflow on one rank skips the update on all.

`scale` is called where the loss is, on the last stage alone; `unscale_`, `step` and `update` on
every rank. Each rank searches its gradients, and an infinity on any of them counts everywhere, so
all ranks skip the same updates and have the same scale. A fault of one rank is raised on all.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from sagemaker_dist.errors import OptionError
from smdist.modelparallel.torch.replicas.grad_clipping import name_of
from smdist.modelparallel.torch.replicas.gradient_buckets import numbers
from smdist.modelparallel.torch.session.current_model import refuse_in_step
from smdist.modelparallel.torch.session.object_collectives import all_gather_object


class GradScaler(torch.amp.GradScaler):
    """Gradient scaler of torch, over all ranks of all replicas.

    Args:
        device: "cuda" or "cpu"; None for CUDA if available.
        options: Options of `torch.amp.GradScaler`.
    """

    def __init__(self, device: str | None = None, **options: Any) -> None:
        kind = device or ("cuda" if torch.cuda.is_available() else "cpu")
        super().__init__(kind, **options)

    def unscale_(self, optimizer: torch.optim.Optimizer) -> None:
        """Divide gradients by the scale; every rank calls it."""
        self._begin("unscale_")
        super().unscale_(optimizer)

    def step(self, optimizer: torch.optim.Optimizer, *args: Any, **kwargs: Any) -> float | None:
        """Update parameters unless some gradient is infinite or NaN; every rank calls it."""
        self._begin("step")
        return super().step(optimizer, *args, **kwargs)

    def update(self, new_scale: float | Tensor | None = None) -> None:
        """Set the scale of the next step; every rank calls it."""
        self._begin("update")
        super().update(new_scale)

    def _begin(self, what: str) -> None:
        """Refuse a call within a step; initialize the scale on ranks that scaled no loss."""
        refuse_in_step(f"GradScaler.{what}()")
        if self._enabled and self._scale is None:
            self._lazy_init_scale_growth_tracker(self._place())

    def _place(self) -> torch.device:
        if self._device == "cuda":
            return torch.device("cuda", torch.cuda.current_device())
        return torch.device(self._device)

    def _unscale_grads_(
        self,
        optimizer: torch.optim.Optimizer,
        inv_scale: Tensor,
        found_inf: Tensor,
        allow_fp16: bool,
    ) -> dict[torch.device, Tensor]:
        fault = "" if allow_fp16 else _half(optimizer)
        with torch.no_grad():
            for gradients in () if fault else _alike(optimizer):
                here = found_inf.to(gradients[0].device, copy=True)
                scale = inv_scale.to(here.device)
                torch._amp_foreach_non_finite_check_and_unscale_(gradients, here, scale)
                found_inf = torch.maximum(found_inf, here.to(found_inf.device))
            found_inf, any_fault = _largest(found_inf, fault)
        if any_fault:
            raise _refusal(fault)
        return {found_inf.device: found_inf}


def _largest(found_inf: Tensor, fault: str) -> tuple[Tensor, bool]:
    """Return the largest `found_inf` of all ranks, and whether any rank has a fault; collective."""
    told = torch.stack([found_inf, torch.full_like(found_inf, float(bool(fault)))])
    if dist.is_initialized():
        dist.all_reduce(told, dist.ReduceOp.MAX)
    return told[0], bool(told[1])


def _refusal(fault: str) -> OptionError:
    """Return the error for the first rank that has a fault; collective."""
    world = dist.group.WORLD
    faults = [fault] if world is None else all_gather_object(fault, world)
    rank, said = next((rank, each) for rank, each in enumerate(faults) if each)
    return OptionError(
        f"GradScaler cannot unscale gradients of rank {rank}: {said}",
        "float16 has no room for the scale, and updates in it lose what is small",
        "Keep parameters in float32, and use torch.autocast in the step",
    )


def _half(optimizer: torch.optim.Optimizer) -> str:
    """Describe a float16 gradient of this rank, which cannot be unscaled; "" if there is none."""
    for parameter in _trained(optimizer):
        if parameter.grad is not None and parameter.grad.dtype is torch.float16:
            name = name_of(parameter) or f"a parameter of shape {tuple(parameter.shape)}"
            return f"that of {name} is {parameter.grad.dtype}"
    return ""


def _trained(optimizer: torch.optim.Optimizer) -> Iterator[Tensor]:
    return (each for group in optimizer.param_groups for each in group["params"])


def _alike(optimizer: torch.optim.Optimizer) -> list[list[Tensor]]:
    """Group this rank's gradients by device and type."""
    found: dict[tuple[torch.device, torch.dtype], list[Tensor]] = {}
    for parameter in _trained(optimizer):
        if parameter.grad is not None:
            gradient = numbers(parameter.grad)
            found.setdefault((gradient.device, gradient.dtype), []).append(gradient)
    return list(found.values())
