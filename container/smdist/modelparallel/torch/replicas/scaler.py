# SPDX-License-Identifier: Apache-2.0
"""Loss scaling for float16: one rank's overflow skips the update of all.

`scale` is called where the loss is, on the last stage alone; `unscale_`, `step` and `update` on
every rank. Gradients are searched on each, and what any has found counts everywhere, so that all
ranks skip the same updates and have the same scale.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from smdist.modelparallel.torch.replicas.held import local


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
        self._begin()
        super().unscale_(optimizer)

    def step(self, optimizer: torch.optim.Optimizer, *args: Any, **kwargs: Any) -> float | None:
        """Update parameters unless a gradient on any rank is no number; every rank calls it."""
        self._begin()
        return super().step(optimizer, *args, **kwargs)

    def update(self, new_scale: float | Tensor | None = None) -> None:
        """Set the scale of the next step; every rank calls it."""
        self._begin()
        super().update(new_scale)

    def _begin(self) -> None:
        """The same scale where no loss was scaled."""
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
        with torch.no_grad():
            for gradients in _alike(optimizer, allow_fp16):
                here = found_inf.to(gradients[0].device, copy=True)
                scale = inv_scale.to(here.device)
                torch._amp_foreach_non_finite_check_and_unscale_(gradients, here, scale)
                found_inf = torch.maximum(found_inf, here.to(found_inf.device))
            if dist.is_initialized():
                dist.all_reduce(found_inf, dist.ReduceOp.MAX)
        return {found_inf.device: found_inf}


def _alike(optimizer: torch.optim.Optimizer, allow_fp16: bool) -> Iterator[list[Tensor]]:
    """Gradients of this rank, those of one device and type together."""
    found: dict[tuple[torch.device, torch.dtype], list[Tensor]] = {}
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            if parameter.grad is None:
                continue
            gradient = _numbers(parameter.grad)
            if gradient.dtype is torch.float16 and not allow_fp16:
                raise ValueError("Attempting to unscale FP16 gradients.")
            found.setdefault((gradient.device, gradient.dtype), []).append(gradient)
    yield from found.values()


def _numbers(gradient: Tensor) -> Tensor:
    return gradient._values() if gradient.is_sparse else local(gradient)
