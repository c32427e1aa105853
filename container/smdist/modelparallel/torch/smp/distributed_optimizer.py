# SPDX-License-Identifier: Apache-2.0
"""Wrapper of any PyTorch optimizer for the parameters of this rank: `smp.DistributedOptimizer`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch

from sagemaker_dist.errors import OptionError, raise_all, require
from smdist.modelparallel.torch import session
from smdist.modelparallel.torch.parallel import current_parallel
from smdist.modelparallel.torch.parallel.optimizers import local_parameters, rewrite
from smdist.modelparallel.torch.session.current_model import register_optimizer, register_wrapped
from smdist.modelparallel.torch.smp.optimizer_state_dict import load_state, local_state, whole_state

_SCALER = "Use smp.amp.GradScaler with torch.autocast"


class DistributedOptimizer(torch.optim.Optimizer):
    """Optimizer of a split model, which wraps an optimizer of PyTorch.

    It may be made before the model is split into stages, and learning rate schedulers accept it. As
    in SMP v1, `step` and `zero_grad` are for the parameters of this rank, and `state_dict` gathers
    the state of all ranks. Unlike in SMP, the state dict has the parameters' names. So it can be
    loaded into a model that is split in another way. To scale losses, use a GradScaler.

    Args:
        optimizer: A `torch.optim.Optimizer` with the model's parameters.
        static_loss_scale: Must be 1.
        dynamic_loss_scale: Must be False.
        dynamic_loss_args: Must be left out.

    Raises:
        OptionError: `optimizer` is no optimizer, or a loss scale is set.
    """

    _step_supports_amp_scaling = False

    def __init__(
        self, optimizer: torch.optim.Optimizer, static_loss_scale: float = 1.0,
        dynamic_loss_scale: bool = False, dynamic_loss_args: Mapping[str, Any] | None = None,
    ) -> None:  # fmt: skip
        is_plain = isinstance(optimizer, torch.optim.Optimizer)
        require(
            is_plain and not isinstance(optimizer, DistributedOptimizer),
            what=f"optimizer is {type(optimizer).__name__}",
            why="it has to be a torch.optim.Optimizer that is not wrapped yet",
            hint="Pass an optimizer such as torch.optim.AdamW(model.parameters())",
            about="optimizer",
        )
        raise_all(_refused(static_loss_scale, dynamic_loss_scale, dynamic_loss_args))
        self._inner = optimizer  # no super().__init__(): groups and state are the inner one's
        session.current()  # raises if there is no session
        register_optimizer(optimizer)
        register_wrapped(self)
        model = current_parallel()
        if model is not None and model.is_cut:
            rewrite(optimizer, local_parameters(model.stages))

    @property
    def optimizer(self) -> torch.optim.Optimizer:
        """PyTorch's optimizer inside this wrapper."""
        return self._inner

    @property
    def param_groups(self) -> list[dict[str, Any]]:  # type: ignore[override]
        """Parameter groups of the wrapped optimizer.

        Once the model is split, the groups contain only parameters of this rank.
        """
        return self._inner.param_groups

    @property
    def state(self) -> Any:  # type: ignore[override]
        """State of the wrapped optimizer: a dict of values, such as momentum, per parameter."""
        return self._inner.state

    @property
    def defaults(self) -> dict[str, Any]:  # type: ignore[override]
        """Default options of the wrapped optimizer."""
        return self._inner.defaults

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Update the parameters of this rank; every rank has to call it.

        With the option `gradient_clipping`, the gradients of the whole model are clipped first.

        Args:
            closure: Must be None.

        Returns:
            Result of the wrapped optimizer's `step`.

        Raises:
            OptionError: A closure is passed; it would run the pipeline inside the optimizer.
        """
        require(
            closure is None,
            what="optimizer.step got a closure",
            why="the closure would run steps of the pipeline inside the optimizer",
            hint="Call the function with @smp.step first, then optimizer.step()",
            about="closure",
        )
        return self._inner.step()

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Set the gradients of this rank's parameters to None; to 0 if `set_to_none` is False."""
        self._inner.zero_grad(set_to_none=set_to_none)

    def state_dict(self) -> dict[str, Any]:
        """Return the optimizer state of all stages, with parameters numbered as in the whole model.

        Once the model is split, all ranks of the replica have to call this method: a call waits for
        the others. Either all replicas call it, or only the replica with dp_rank 0. With
        sharding="optimizer" or "full", all ranks of the world have to call it, because each replica
        has only a part of the state.
        """
        model = current_parallel()
        if model is None or not model.is_cut:
            return self._inner.state_dict()
        return whole_state(self._inner, model)

    def local_state_dict(self) -> dict[str, Any]:
        """Return the optimizer state of this rank only, marked by SMP's key "_smp_is_partial"."""
        model = current_parallel()
        if model is None or not model.is_cut:
            return {**self._inner.state_dict(), "_smp_is_partial": True}
        return local_state(self._inner, model)

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Load the state of this rank's parameters from a state dict.

        If the model is not split yet, the state dict is kept, and loaded when the first step splits
        the model.

        Args:
            state_dict: Result of `state_dict`, or of `local_state_dict` for the same stages.

        Raises:
            OptionError: The state dict is for other parameters, such as parameters of another rank.
        """
        model = current_parallel()
        if model is None:
            plain = {k: value for k, value in state_dict.items() if not k.startswith("_smp_")}
            self._inner.load_state_dict(plain)
        else:
            model.when_cut(lambda: load_state(self._inner, model, state_dict))

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a parameter group, as `torch.optim.Optimizer.add_param_group` does.

        Once the model is split, the group may contain only parameters of this rank.
        """
        self._inner.add_param_group(param_group)

    def __getattr__(self, name: str) -> Any:
        if name == "_inner":
            raise AttributeError(name)
        return getattr(self._inner, name)

    def __repr__(self) -> str:
        return f"DistributedOptimizer({self._inner!r})"


def _refused(
    static: object, dynamic: object, arguments: Mapping[str, Any] | None
) -> Iterator[OptionError]:
    why = "this optimizer does not scale the loss, but a GradScaler does"
    if static != 1.0:
        yield OptionError(
            f"static_loss_scale is {static!r}", why, _SCALER, about="static_loss_scale"
        )
    if dynamic:
        yield OptionError(
            f"dynamic_loss_scale is {dynamic!r}", why, _SCALER, about="dynamic_loss_scale"
        )
    if arguments:
        yield OptionError(
            f"dynamic_loss_args is {dict(arguments)!r}", why, _SCALER, about="dynamic_loss_args"
        )
