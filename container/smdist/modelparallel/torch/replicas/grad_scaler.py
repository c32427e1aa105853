# SPDX-License-Identifier: Apache-2.0
"""Loss scaling for float16: an overflow on one rank skips the update on all ranks.

`scale` is called on the rank of the last stage, which has the loss; `unscale_`, `step` and `update`
are called on every rank. If a gradient of any rank is not finite, all ranks skip the update. So the
scale is always the same on all ranks. An error of one rank is raised on all ranks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import wraps
from typing import Any, Final

import torch
import torch.distributed as dist
from torch import Tensor

from sagemaker_dist.errors import OptionError
from smdist.modelparallel.torch.accelerator import current_device
from smdist.modelparallel.torch.replicas.grad_clipping import name_of
from smdist.modelparallel.torch.replicas.gradient_buckets import numbers
from smdist.modelparallel.torch.session.current_model import (
    current_model,
    refuse_in_step,
    wrapped_optimizer,
)
from smdist.modelparallel.torch.session.object_collectives import all_gather_object

_WATCHED: Final = ("unscale_", "step")


class GradScaler(torch.amp.GradScaler):
    """Gradient scaler like torch's, for gradients that are distributed over all ranks.

    Args:
        device: Type of the device, such as "cuda" or "cpu"; None for that of the accelerator, or
            "cpu" if there is none.
        options: Options of `torch.amp.GradScaler`.
    """

    def __init__(self, device: str | None = None, **options: Any) -> None:
        here = current_device()
        super().__init__(device or ("cpu" if here is None else here.type), **options)

    def unscale_(self, optimizer: torch.optim.Optimizer) -> None:
        """Divide the optimizer's gradients by the scale; all ranks must call this."""
        self._begin("unscale_")
        super().unscale_(optimizer)

    def step(self, optimizer: torch.optim.Optimizer, *args: Any, **kwargs: Any) -> float | None:
        """Run the optimizer's step, unless a gradient of any rank is infinite or NaN.

        All ranks must call this.

        Returns:
            Result of the optimizer's step; None if the step was skipped.
        """
        self._begin("step")
        return super().step(optimizer, *args, **kwargs)

    def update(self, new_scale: float | Tensor | None = None) -> None:
        """Set the scale of the next step; every rank must call it.

        Args:
            new_scale: New scale; None to raise or lower it by torch's rules.
        """
        self._begin("update")
        super().update(new_scale)

    def _begin(self, what: str) -> None:
        """Refuse a call inside a step function, and make sure that this rank has a scale.

        Only the rank of the last stage has called `scale`, which creates the scale.

        Args:
            what: Name of the called method, for the error's text.
        """
        refuse_in_step(f"GradScaler.{what}()")
        if self._enabled and self._scale is None:
            self._lazy_init_scale_growth_tracker(self._place())

    def _place(self) -> torch.device:
        """Return the device of this rank on which the scale is stored."""
        here = current_device()
        is_here = here is not None and here.type == self._device
        return here if is_here else torch.device(self._device)  # type: ignore[return-value]

    def _unscale_grads_(
        self,
        optimizer: torch.optim.Optimizer,
        inv_scale: Tensor,
        found_inf: Tensor,
        allow_fp16: bool,
    ) -> dict[torch.device, Tensor]:
        """Divide this rank's gradients by the scale, and check the gradients of all ranks.

        PyTorch calls this method in `unscale_` and `step`; all ranks must call it.

        Args:
            optimizer: Optimizer whose gradients are divided.
            inv_scale: Factor 1 / scale.
            found_inf: Tensor of 0, as start value of the result.
            allow_fp16: True to accept float16 gradients.

        Returns:
            Tensor, by its device, that is above 0 if a gradient of any rank is infinite or NaN.

        Raises:
            OptionError: A rank has float16 gradients; raised on all ranks.
        """
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


def watch_plain_scalers() -> None:
    """Make torch's own GradScaler raise an error for an optimizer of a split model."""
    for name in _WATCHED:
        plain = getattr(torch.amp.GradScaler, name)
        if not hasattr(plain, "__wrapped__"):
            setattr(torch.amp.GradScaler, name, _watched(name, plain))


def _watched(name: str, plain: Callable[..., Any]) -> Callable[..., Any]:
    """Return a method of torch's GradScaler that raises an error for a split model."""

    @wraps(plain)
    def checked(self: Any, optimizer: torch.optim.Optimizer, *args: Any, **kwargs: Any) -> Any:
        is_plain = not isinstance(self, GradScaler) and self.is_enabled()
        if is_plain and _is_of_split_model(optimizer):
            raise OptionError(
                f"torch.amp.GradScaler.{name}() is called for a model that is split over ranks",
                "it looks for infinite gradients of this rank alone, so that ranks would skip"
                " different steps",
                "Make the scaler with smp.amp.GradScaler(), which takes the same options",
                about="GradScaler",
                kind="unsupported",
            )
        return plain(self, optimizer, *args, **kwargs)

    return checked


def _is_of_split_model(optimizer: torch.optim.Optimizer) -> bool:
    """Return True if ranks have different parts of the model that an optimizer updates."""
    model = current_model()
    if model is None or not model.is_cut or model.groups.mp_size == 1:
        return False
    own = {id(parameter) for parameter in model.parameters()}
    is_wrapped = optimizer is wrapped_optimizer()
    return is_wrapped or any(id(each) in own for each in _trained(optimizer))


def _largest(found_inf: Tensor, fault: str) -> tuple[Tensor, bool]:
    """Return the largest `found_inf` of all ranks, and True if any rank has an error.

    All ranks must call this.

    Args:
        found_inf: Tensor that is above 0 if a gradient of this rank is infinite or NaN.
        fault: Text of this rank's error; "" if it has none.
    """
    largest = torch.stack([found_inf, torch.full_like(found_inf, float(bool(fault)))])
    if dist.is_initialized():
        dist.all_reduce(largest, dist.ReduceOp.MAX)
    return largest[0], bool(largest[1])


def _refusal(fault: str) -> OptionError:
    """Exchange the error texts of all ranks, and return an error with the first text.

    All ranks must call this.

    Args:
        fault: Text of this rank's error; "" if it has none.
    """
    world = dist.group.WORLD
    faults = [fault] if world is None else all_gather_object(fault, world)
    rank, text = next((rank, each) for rank, each in enumerate(faults) if each)
    return OptionError(
        f"GradScaler cannot unscale gradients of rank {rank}: {text}",
        "float16 cannot represent scaled gradients and small updates",
        "Keep parameters in float32, and use torch.autocast in the step; or pass fp16=True to"
        " ModelParallel, and call step() of a smp.DistributedOptimizer without a GradScaler",
        kind="unsupported_dtype",
    )


def _half(optimizer: torch.optim.Optimizer) -> str:
    """Describe a float16 gradient of this rank, which cannot be unscaled; "" if there is none."""
    for parameter in _trained(optimizer):
        if parameter.grad is not None and parameter.grad.dtype is torch.float16:
            name = name_of(parameter) or f"a parameter of shape {tuple(parameter.shape)}"
            return f"that of {name} is {parameter.grad.dtype}"
    return ""


def _trained(optimizer: torch.optim.Optimizer) -> Iterator[Tensor]:
    """Return the parameters of all groups of an optimizer."""
    return (each for group in optimizer.param_groups for each in group["params"])


def _alike(optimizer: torch.optim.Optimizer) -> list[list[Tensor]]:
    """Return this rank's gradients in lists, one for each device and dtype."""
    found: dict[tuple[torch.device, torch.dtype], list[Tensor]] = {}
    for parameter in _trained(optimizer):
        if parameter.grad is not None:
            gradient = numbers(parameter.grad)
            found.setdefault((gradient.device, gradient.dtype), []).append(gradient)
    return list(found.values())
