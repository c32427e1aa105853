# SPDX-License-Identifier: Apache-2.0
"""Optimizers that were made before the model was cut get the parameters of this rank.

Their groups keep their number, order and options, so that schedulers go on; a group of which this
rank has nothing is empty.

Before each step of an optimizer of the model, whoever wraps it, gradients are clipped as
`gradient_clipping` says. An optimizer of the model has its parameters on some rank, so all ranks
clip together, those that have none of them too.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final
from weakref import WeakSet, ref

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, distribute_tensor
from torch.optim.optimizer import register_optimizer_step_pre_hook

from sagemaker_dist.errors import require
from smdist.modelparallel.torch.parallel import active
from smdist.modelparallel.torch.replicas.clip import clip_grad_norm_

if TYPE_CHECKING:
    from smdist.modelparallel.torch.parallel.parallel import Parallel

_MOVED: Final = "_smp_moved"  # on a parameter that is not the model's any more: its names
_seen: WeakSet[torch.optim.Optimizer] = WeakSet()
_moved: WeakSet[torch.optim.Optimizer] = WeakSet()  # of a model that was cut
_is_hooked = False


class Renaming:
    """Remembers the names of a whole model's parameters while it is cut.

    It holds no parameter: their memory can go.
    """

    def __init__(self, model: nn.Module) -> None:
        self._names: dict[int, list[str]] = {}
        self._old: dict[int, ref[nn.Parameter]] = {}
        for name, parameter in model.named_parameters(remove_duplicate=False):
            self._names.setdefault(id(parameter), []).append(name)
            self._old[id(parameter)] = ref(parameter)

    def apply(self, stages: Mapping[int, nn.Module]) -> None:
        """Give all optimizers the parameters of these stages."""
        local = local_parameters(stages)
        kept = {id(parameter) for parameter in local.values()}
        for key, names in self._names.items():
            parameter = self._old[key]()
            if parameter is not None and key not in kept:
                setattr(parameter, _MOVED, tuple(names))
        del parameter
        for optimizer in active.optimizers():
            rewrite(optimizer, local)
        _watch_others()


def local_parameters(stages: Mapping[int, nn.Module]) -> dict[str, nn.Parameter]:
    """Parameters of this rank by each of their names."""
    return {
        name: parameter
        for number in sorted(stages)
        for name, parameter in stages[number].named_parameters(remove_duplicate=False)
    }


def rewrite(optimizer: torch.optim.Optimizer, local: Mapping[str, nn.Parameter]) -> None:
    """Put local parameters in place of those that moved, with what the optimizer knows of them."""
    for group in optimizer.param_groups:
        found: dict[int, nn.Parameter] = {}
        for parameter in group["params"]:
            new = _now(parameter, local)
            state = optimizer.state.pop(parameter, None) if new is not parameter else None
            if new is not parameter:
                _moved.add(optimizer)
            if new is not None:
                found[id(new)] = new
                if state:
                    optimizer.state[new] = {k: spread(v, new) for k, v in state.items()}
        group["params"][:] = found.values()


def _now(parameter: nn.Parameter, local: Mapping[str, nn.Parameter]) -> nn.Parameter | None:
    names: tuple[str, ...] | None = getattr(parameter, _MOVED, None)
    if names is None:
        return parameter
    return next((local[name] for name in names if name in local), None)


def spread(value: Any, parameter: nn.Parameter) -> Any:
    """State of a whole parameter, for this rank's part of it."""
    if not isinstance(value, Tensor) or not isinstance(parameter, DTensor):
        return value
    if isinstance(value, DTensor) or value.shape != parameter.shape:
        return value
    return distribute_tensor(value, parameter.device_mesh, parameter.placements)


def _watch_others() -> None:
    """Optimizers that nobody told us of are rewritten when they step first."""
    global _is_hooked
    if not _is_hooked:
        register_optimizer_step_pre_hook(_before_step)
        _is_hooked = True


def _before_step(
    optimizer: torch.optim.Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> None:
    model = active.model()
    if model is None or not model.is_cut:
        return
    if optimizer not in _seen:
        rewrite(optimizer, local_parameters(model.stages))
        _check_all_are_of(optimizer, model)
        _seen.add(optimizer)
    max_norm = model.session.options.gradient_clipping
    if max_norm is not None and _is_of(optimizer, model):
        closure = kwargs.get("closure", next(iter(args[1:]), None))
        _clip(optimizer, max_norm, closure)


def _check_all_are_of(optimizer: torch.optim.Optimizer, model: Parallel) -> None:
    """A loss function's parameters would become others on each rank."""
    if model.groups.mp_size * model.groups.rdp_size == 1 or not _is_of(optimizer, model):
        return
    own = {id(parameter) for parameter in model.parameters()}
    others = [p for p in _parameters(optimizer) if p.requires_grad and id(p) not in own]
    require(
        not others,
        what=f"{type(optimizer).__name__} has {len(others)} parameters that are in no stage, such "
        f"as one of shape {tuple(others[0].shape) if others else ()}",
        why="only ranks of the last stage have gradients of them, and no means over replicas",
        mend="Put what the loss trains into the model, or step it with an optimizer of its own",
    )


def _is_of(optimizer: torch.optim.Optimizer, model: nn.Module) -> bool:
    """Whether it has parameters of the model, here or on other ranks."""
    own = {id(parameter) for parameter in model.parameters()}
    return optimizer in _moved or any(id(each) in own for each in _parameters(optimizer))


def _parameters(optimizer: torch.optim.Optimizer) -> Iterator[Tensor]:
    return (each for group in optimizer.param_groups for each in group["params"])


def _clip(optimizer: torch.optim.Optimizer, max_norm: float, closure: object) -> None:
    require(
        closure is None,
        what=f"{type(optimizer).__name__}.step got a closure, and gradient_clipping is {max_norm}",
        why="gradients are clipped before the step, and a closure computes them in it",
        mend="Run the step of the model yourself, then call optimizer.step()",
    )
    scale = getattr(optimizer, "grad_scale", None)  # a GradScaler's, where it unscales by itself
    clip_grad_norm_(_parameters(optimizer), max_norm * (1.0 if scale is None else float(scale)))
