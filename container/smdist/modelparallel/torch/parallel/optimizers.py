# SPDX-License-Identifier: Apache-2.0
"""Optimizers of a model that is split into stages: parameters, clipping and forbidden calls.

Parameters. An optimizer that was made before the split has the parameters of the whole model. The
split replaces them by the parameters of this rank. The parameter groups keep their number, order
and options, so learning-rate schedulers still work. A group without parameters on this rank becomes
empty.

Clipping. With the option `gradient_clipping`, gradients are clipped before each step of an
optimizer of the model. All ranks take part, even those that hold none of the optimizer's
parameters.

Forbidden calls. Calls of an optimizer in a step function raise an error. A step function runs once
per microbatch, and on most ranks only up to the model's call. So only the last stage would be
updated, and after each microbatch. A call of `state_dict` of the user's own module raises an error
too, since other ranks hold a part of the values.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import wraps
from typing import Any, Final
from weakref import WeakSet, ref

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, distribute_tensor
from torch.optim.optimizer import register_optimizer_step_pre_hook

from sagemaker_dist.errors import OptionError, require
from smdist.modelparallel.torch.replicas.grad_clipping import clip_grad_norm_
from smdist.modelparallel.torch.replicas.grad_scaler import watch_plain_scalers
from smdist.modelparallel.torch.replicas.host_update import acting, at_home
from smdist.modelparallel.torch.session.current_model import (
    SplitModel,
    current_model,
    living_models,
    models_in_step,
    optimizers,
    refuse_in_step,
)
from smdist.modelparallel.torch.tensor_splits import split_of

_MOVED: Final = "_smp_moved"  # attribute with the names of a parameter that the cut replaced
_seen: WeakSet[torch.optim.Optimizer] = WeakSet()
_moved: WeakSet[torch.optim.Optimizer] = WeakSet()  # optimizers of a model that was cut
_is_hooked = False


class ParameterRenaming:
    """Replacement, in optimizers, of the whole model's parameters by this rank's parameters.

    Create this object before the model is split into stages, and call `apply` afterwards. It has
    only weak references to the old parameters, so that their memory can be freed.

    Args:
        model: Whole model of the user.
    """

    def __init__(self, model: nn.Module) -> None:
        self._names: dict[int, list[str]] = {}
        self._old: dict[int, ref[nn.Parameter]] = {}
        for name, parameter in model.named_parameters(remove_duplicate=False):
            self._names.setdefault(id(parameter), []).append(name)
            self._old[id(parameter)] = ref(parameter)

    def apply(self, stages: Mapping[int, nn.Module]) -> None:
        """Replace the parameters of the whole model by this rank's in all registered optimizers.

        Optimizers are registered with `register_optimizer`.

        Args:
            stages: Stages of this rank, by number.
        """
        local = local_parameters(stages)
        kept = {id(parameter) for parameter in local.values()}
        for key, names in self._names.items():
            parameter = self._old[key]()
            if parameter is not None and key not in kept:
                setattr(parameter, _MOVED, tuple(names))
        del parameter
        for optimizer in optimizers():
            rewrite(optimizer, local)
        _watch_others()


def local_parameters(stages: Mapping[int, nn.Module]) -> dict[str, nn.Parameter]:
    """Return the parameters of this rank's stages by name; a shared parameter has several names."""
    return {
        name: parameter
        for number in sorted(stages)
        for name, parameter in stages[number].named_parameters(remove_duplicate=False)
    }


def rewrite(optimizer: torch.optim.Optimizer, local: Mapping[str, nn.Parameter]) -> None:
    """Replace the whole model's parameters in an optimizer by this rank's, and adapt its state.

    Args:
        optimizer: Optimizer to change in place.
        local: Parameters of this rank by name.
    """
    for group in optimizer.param_groups:
        found: dict[int, nn.Parameter] = {}
        for parameter in group["params"]:
            new = _local_parameter(parameter, local)
            state = optimizer.state.pop(parameter, None) if new is not parameter else None
            if new is not parameter:
                _moved.add(optimizer)
            if new is not None:
                found[id(new)] = new
                if state:
                    optimizer.state[new] = {k: _adapted(k, v, new) for k, v in state.items()}
        group["params"][:] = found.values()


def _local_parameter(
    parameter: nn.Parameter, local: Mapping[str, nn.Parameter]
) -> nn.Parameter | None:
    """Return this rank's parameter that has replaced a parameter of the whole model.

    A parameter that was not replaced is returned itself. The result is None if no stage of this
    rank has the parameter.

    Args:
        parameter: Parameter in an optimizer.
        local: Parameters of this rank by name.
    """
    names: tuple[str, ...] | None = getattr(parameter, _MOVED, None)
    if names is None:
        return parameter
    return next((local[name] for name in names if name in local), None)


def _adapted(key: str, value: Any, parameter: nn.Parameter) -> Any:
    """Convert a piece of optimizer state to the parameter that has replaced the whole one.

    Args:
        key: Name of the piece, such as "exp_avg". A step counter stays on the CPU.
        value: Piece of state of the whole parameter.
        parameter: Parameter of this rank, which may be on another device, or sharded.
    """
    if not isinstance(value, Tensor) or key == "step":
        return spread(value, parameter)
    return at_home(spread(value.to(parameter.device), parameter), parameter)


def spread(value: Any, parameter: nn.Parameter) -> Any:
    """Convert a piece of optimizer state from the whole parameter to this rank's parameter.

    If the parameter is sharded, or split over ranks, so is a tensor of the whole parameter's shape.
    Any other value is returned unchanged.

    Args:
        value: Piece of state of the whole parameter, such as `exp_avg` of Adam.
        parameter: Parameter of this rank.
    """
    split = split_of(parameter)
    if split is not None and isinstance(value, Tensor) and split.fits(value, parameter):
        value = split.part(value)
    if not isinstance(value, Tensor) or not isinstance(parameter, DTensor):
        return value
    if isinstance(value, DTensor) or value.shape != parameter.shape:
        return value
    return distribute_tensor(value, parameter.device_mesh, parameter.placements)


def _watch_others() -> None:
    """Install the hook `_before_step`, which runs before each step of any optimizer."""
    global _is_hooked
    if not _is_hooked:
        register_optimizer_step_pre_hook(_before_step)
        _is_hooked = True


def _before_step(
    optimizer: torch.optim.Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> None:
    """Prepare an optimizer's step: set the parameters of this rank, and clip gradients.

    Torch calls this function before each step of any optimizer. Before the first step after the
    split, parameters of the whole model are replaced by parameters of this rank. Optimizers of
    other models are left unchanged.

    Args:
        optimizer: Optimizer whose `step` is called.
        args, kwargs: Arguments of `step`; `args` begins with the optimizer.
    """
    for each in living_models():
        _check_is_wrapped(optimizer, each)
    model = current_model()
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


def _check_is_wrapped(optimizer: torch.optim.Optimizer, model: SplitModel) -> None:
    """Raise an OptionError if a step of an optimizer needs an `smp.DistributedOptimizer` around it.

    It does where parameters have 16 bits, where gradients are scaled, and where optimizer state is
    on the host.
    """
    needs = _need_of_wrapper(optimizer, model)
    if needs is None or not _updates(optimizer, model):
        return
    option, why = needs
    raise OptionError(
        f"{type(optimizer).__name__}.step is called with {option}=True",
        why,
        "Wrap the optimizer: optimizer = smp.DistributedOptimizer(optimizer)",
        about="optimizer",
        kind="not_wrapped",
    )


def _need_of_wrapper(optimizer: torch.optim.Optimizer, model: SplitModel) -> tuple[str, str] | None:
    """Return the option for which an optimizer needs a wrapper, and the reason; None without."""
    masters = model.masters
    if masters is not None and not masters.is_in_place:
        why = "float32 master weights are updated, and the smp.DistributedOptimizer has them"
        return "fp16" if masters.scaled else "bf16", why
    are_hosts = all(each.device.type == "cpu" for each in _parameters(optimizer))
    if model.host_update is not None and not are_hosts:  # host parameters are of a running step
        why = "the step runs on the CPU, and the smp.DistributedOptimizer copies gradients there"
        return "offload_optimizer", why
    return None


def _updates(optimizer: torch.optim.Optimizer, model: SplitModel) -> bool:
    """Return True if a step of an optimizer would update parameters of the model."""
    own = {id(parameter) for parameter in model.parameters()}
    is_moved = optimizer in _moved and model is current_model()
    return is_moved or any(id(each) in own for each in _parameters(optimizer))


def _check_all_are_of(optimizer: torch.optim.Optimizer, model: SplitModel) -> None:
    """Raise an OptionError if an optimizer of the model also has parameters outside of the model.

    For example, parameters of a loss function have gradients only on the ranks of the last stage.
    """
    if model.groups.mp_size * model.groups.rdp_size == 1 or not _is_of(optimizer, model):
        return
    own = {id(acting(parameter)) for parameter in model.parameters()}
    others = [p for p in _parameters(optimizer) if p.requires_grad and id(p) not in own]
    require(
        not others,
        what=f"{type(optimizer).__name__} has {len(others)} parameters that are in no stage, such "
        f"as one of shape {tuple(others[0].shape) if others else ()}",
        why="such parameters have gradients on the ranks of the last stage alone, and these are not"
        " averaged over replicas",
        hint="Move these parameters into the model, or give them an optimizer of their own",
        about="optimizer",
    )


def _is_of(optimizer: torch.optim.Optimizer, model: SplitModel) -> bool:
    """Return True if an optimizer has parameters of the model, on this rank or on other ranks."""
    own = {id(acting(parameter)) for parameter in model.parameters()}
    return optimizer in _moved or any(id(each) in own for each in _parameters(optimizer))


def _parameters(optimizer: torch.optim.Optimizer) -> Iterator[Tensor]:
    """Return the parameters of all groups of an optimizer."""
    return (each for group in optimizer.param_groups for each in group["params"])


def _clip(optimizer: torch.optim.Optimizer, max_norm: float, closure: object) -> None:
    """Clip the gradients of an optimizer's parameters by their norm over all ranks.

    Args:
        optimizer: Optimizer whose step is about to run.
        max_norm: Largest norm of the gradients.
        closure: Closure that was passed to `optimizer.step`; None if there is none.

    Raises:
        OptionError: A closure was passed to `optimizer.step`.
    """
    require(
        closure is None,
        what=f"{type(optimizer).__name__}.step got a closure, and gradient_clipping is {max_norm}",
        why="gradients are clipped before optimizer.step() runs, but a closure computes them later,"
        " inside optimizer.step()",
        hint="Call the closure before optimizer.step(), and call optimizer.step() without it",
        about="gradient_clipping",
    )
    scale = getattr(optimizer, "grad_scale", None)  # set if the optimizer itself unscales
    clip_grad_norm_(_parameters(optimizer), max_norm * (1.0 if scale is None else float(scale)))


_is_watching = False


def watch(model: SplitModel) -> None:
    """Install hooks that raise an error for three kinds of calls that are wrong for a split model.

    These are calls of an optimizer in a step function, of `state_dict` of the user's own module
    after the split, and of torch's own GradScaler.
    """
    global _is_watching
    module: Any = model.module
    model.when_cut(lambda: module.register_state_dict_pre_hook(_has_values) and None)
    if not _is_watching:
        _is_watching = True
        watch_plain_scalers()
        register_optimizer_step_pre_hook(_guard_step)
        plain = torch.optim.Optimizer.zero_grad
        torch.optim.Optimizer.zero_grad = _refusing(plain)  # type: ignore[method-assign]


def _guard_step(optimizer: torch.optim.Optimizer, *_: Any) -> None:
    """Raise an error if `optimizer.step()` is called in a step function of its model."""
    if _is_of_model(optimizer):
        refuse_in_step(f"{type(optimizer).__name__}.step()")


def _refusing(zero_grad: Callable[..., None]) -> Callable[..., None]:
    """Return a `zero_grad` that raises an error if it is called in a step function.

    A wrapper is needed, because torch has no hook that runs before `zero_grad`.

    Args:
        zero_grad: Method `torch.optim.Optimizer.zero_grad`.
    """

    @wraps(zero_grad)
    def checked(self: torch.optim.Optimizer, *args: Any, **kwargs: Any) -> None:
        if _is_of_model(self):
            refuse_in_step(f"{type(self).__name__}.zero_grad()")
        zero_grad(self, *args, **kwargs)

    return checked


def _is_of_model(optimizer: torch.optim.Optimizer) -> bool:
    """Return True if an optimizer has parameters of a model whose step function is running."""
    running = models_in_step()
    if not running:
        return False
    own = {id(each) for model in running for each in _tensors(model)}
    groups = optimizer.param_groups
    passed = [parameter for group in groups for parameter in group["params"]]
    return any(id(each) in own or hasattr(each, "_smp_moved") for each in passed)


def _tensors(model: SplitModel) -> Iterable[Tensor]:
    """Return the parameters of this rank's stages, then all parameters of the user's module."""
    return [*model.parameters(), *model.module.parameters()]


def _has_values(module: nn.Module, *_: Any) -> None:
    """Raise an OptionError if the values of some parameters or buffers are only on other ranks.

    Torch calls this before `state_dict` of the module.
    """
    tensors = [*module.named_parameters(), *module.named_buffers()]
    gone = [name for name, tensor in tensors if tensor.is_meta]
    if gone:
        raise OptionError(
            f"state_dict() of {type(module).__name__} itself lacks the values of {len(gone)}"
            f" tensors, such as {gone[0]!r}",
            "the model was split into stages, and other ranks hold these tensors",
            "Call state_dict() of the DistributedModel around it, or smp.export(path, model)",
            kind="no_values",
        )
