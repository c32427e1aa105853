# SPDX-License-Identifier: Apache-2.0
"""What is wrong within a step, or once a model is cut, and would not be seen: it is refused.

The function of a step runs once per microbatch, on most ranks up to the model's call alone. An
optimizer in it would update the last stage's parameters after each microbatch, and no others.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import wraps
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.optim.optimizer import register_optimizer_step_pre_hook

from sagemaker_dist.errors import OptionError
from smdist.modelparallel.torch import inside
from smdist.modelparallel.torch.inside import refuse_inside

if TYPE_CHECKING:
    from smdist.modelparallel.torch.parallel.parallel import Parallel

_is_watching = False


def watch(model: Parallel) -> None:
    """Refuse optimizers within the steps of this model, and what its module lost once it is cut."""
    global _is_watching
    inside.enter(model)
    module: Any = model.module
    model.when_cut(lambda: module.register_state_dict_pre_hook(_has_values) and None)
    if not _is_watching:
        _is_watching = True
        register_optimizer_step_pre_hook(_before_step)
        plain = torch.optim.Optimizer.zero_grad
        torch.optim.Optimizer.zero_grad = _refusing(plain)  # type: ignore[method-assign]


def _before_step(optimizer: torch.optim.Optimizer, *_: Any) -> None:
    if _is_of_model(optimizer):
        refuse_inside(f"{type(optimizer).__name__}.step()")


def _refusing(zero_grad: Callable[..., None]) -> Callable[..., None]:
    """No hook of torch's is called before gradients are forgotten."""

    @wraps(zero_grad)
    def checked(self: torch.optim.Optimizer, *args: Any, **kwargs: Any) -> None:
        if _is_of_model(self):
            refuse_inside(f"{type(self).__name__}.zero_grad()")
        zero_grad(self, *args, **kwargs)

    return checked


def _is_of_model(optimizer: torch.optim.Optimizer) -> bool:
    """Whether it trains parameters of the model that runs; those on other ranks are marked."""
    running = inside.running()
    if not running:
        return False
    own = {id(each) for model in running for each in _tensors(model)}
    groups = optimizer.param_groups
    passed = [parameter for group in groups for parameter in group["params"]]
    return any(id(each) in own or hasattr(each, "_smp_moved") for each in passed)


def _tensors(model: Parallel) -> Iterable[Tensor]:
    return [*model.parameters(), *model.module.parameters()]


def _has_values(module: nn.Module, *_: Any) -> None:
    """Before `state_dict` of a module that was cut: what other ranks hold has no values here."""
    tensors = [*module.named_parameters(), *module.named_buffers()]
    gone = [name for name, tensor in tensors if tensor.is_meta]
    if gone:
        raise OptionError(
            f"state_dict() of {type(module).__name__} itself has no values of {len(gone)} tensors,"
            f" such as {gone[0]!r}",
            "the model was cut into stages, and other ranks hold them",
            "Call state_dict() of the DistributedModel around it, or smp.export(path, model)",
        )
