# SPDX-License-Identifier: Apache-2.0
"""Loss scaling for float16: one rank's overflow skips the update of all.

`scale` is called where the loss is, on the last stage alone; `unscale_`, `step` and `update` on
every rank. Gradients are searched on each, and what any has found counts everywhere, so that all
ranks skip the same updates and have the same scale. What is refused on one is refused on all.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from sagemaker_dist.errors import OptionError
from smdist.modelparallel.torch.inside import refuse_inside
from smdist.modelparallel.torch.mail.post import gather
from smdist.modelparallel.torch.replicas.clip import name_of
from smdist.modelparallel.torch.replicas.held import numbers


class GradScaler(torch.amp.GradScaler):
    """torch's, over all ranks of all replicas.

    Args:
        device: "cuda" or "cpu"; None: CUDA where there is one.
        options: Those of `torch.amp.GradScaler`.
    """

    def __init__(self, device: str | None = None, **options: Any) -> None:
        kind = device or ("cuda" if torch.cuda.is_available() else "cpu")
        super().__init__(kind, **options)

    def unscale_(self, optimizer: torch.optim.Optimizer) -> None:
        """Divide gradients by the scale; every rank calls it."""
        self._begin("unscale_")
        super().unscale_(optimizer)

    def step(self, optimizer: torch.optim.Optimizer, *args: Any, **kwargs: Any) -> float | None:
        """Update parameters unless a gradient on any rank is no number; every rank calls it."""
        self._begin("step")
        return super().step(optimizer, *args, **kwargs)

    def update(self, new_scale: float | Tensor | None = None) -> None:
        """Set the scale of the next step; every rank calls it."""
        self._begin("update")
        super().update(new_scale)

    def _begin(self, what: str) -> None:
        """The same scale where no loss was scaled; in a step other ranks would not be there."""
        refuse_inside(f"GradScaler.{what}()")
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
    """What is found anywhere, and whether any rank has a fault; collective."""
    told = torch.stack([found_inf, torch.full_like(found_inf, float(bool(fault)))])
    if dist.is_initialized():
        dist.all_reduce(told, dist.ReduceOp.MAX)
    return told[0], bool(told[1])


def _refusal(fault: str) -> OptionError:
    """The first rank's that has a fault; collective."""
    world = dist.group.WORLD
    faults = [fault] if world is None else gather(fault, world)
    rank, said = next((rank, each) for rank, each in enumerate(faults) if each)
    return OptionError(
        f"GradScaler cannot unscale gradients of rank {rank}: {said}",
        "float16 has no room for the scale, and updates in it lose what is small",
        "Keep parameters in float32, and use torch.autocast in the step",
    )


def _half(optimizer: torch.optim.Optimizer) -> str:
    """Which gradient of this rank is of a type that is not unscaled; "" for none."""
    for parameter in _trained(optimizer):
        if parameter.grad is not None and parameter.grad.dtype is torch.float16:
            name = name_of(parameter) or f"a parameter of shape {tuple(parameter.shape)}"
            return f"that of {name} is {parameter.grad.dtype}"
    return ""


def _trained(optimizer: torch.optim.Optimizer) -> Iterator[Tensor]:
    return (each for group in optimizer.param_groups for each in group["params"])


def _alike(optimizer: torch.optim.Optimizer) -> list[list[Tensor]]:
    """Gradients of this rank, those of one device and type together."""
    found: dict[tuple[torch.device, torch.dtype], list[Tensor]] = {}
    for parameter in _trained(optimizer):
        if parameter.grad is not None:
            gradient = numbers(parameter.grad)
            found.setdefault((gradient.device, gradient.dtype), []).append(gradient)
    return list(found.values())
