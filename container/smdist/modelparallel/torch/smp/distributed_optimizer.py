# SPDX-License-Identifier: Apache-2.0
"""Wrapper of any PyTorch optimizer for the parameters of this rank: `smp.DistributedOptimizer`."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from typing import Any

import torch

from sagemaker_dist.errors import require
from smdist.modelparallel.torch import session
from smdist.modelparallel.torch.parallel import current_parallel
from smdist.modelparallel.torch.parallel.optimizers import local_parameters, rewrite
from smdist.modelparallel.torch.replicas import clip_grad_norm_
from smdist.modelparallel.torch.replicas.loss_scale import LossScale
from smdist.modelparallel.torch.session.current_model import (
    refuse_in_step,
    register_optimizer,
    register_wrapped,
)
from smdist.modelparallel.torch.smp.master_update import MasterUpdate
from smdist.modelparallel.torch.smp.optimizer_state_dict import (
    LOSS_SCALE,
    load_state,
    local_state,
    whole_state,
)

_UNSCALED = (
    "static_loss_scale and dynamic_loss_scale have no effect: without fp16=True, losses are not"
    " scaled."
)


class DistributedOptimizer(torch.optim.Optimizer):
    """Optimizer of a split model, which wraps an optimizer of PyTorch.

    It may be made before the model is split into stages, and learning rate schedulers accept it. As
    in SMP v1, `step` and `zero_grad` are for the parameters of this rank, and `state_dict` gathers
    the state of all ranks. Unlike in SMP, the state dict has the parameters' names. So it can be
    loaded into a model that is split in another way.

    With fp16=True, `model.backward` multiplies the loss by this optimizer's loss scale. `step`
    divides gradients by it, updates float32 master weights, and rounds the parameters from them. If
    a gradient of any rank is infinite or NaN, all ranks skip the step, and a dynamic scale is
    lowered. Without fp16, losses are not scaled, and the arguments for it have no effect.

    Args:
        optimizer: A `torch.optim.Optimizer` with the model's parameters.
        static_loss_scale: Loss scale, if it is not dynamic; a number above 0. None only with
            dynamic_loss_scale=True.
        dynamic_loss_scale: True to lower the loss scale after skipped steps, and to raise it after
            steps without infinite gradients.
        dynamic_loss_args: Options of a dynamic scale; those that are left out have SMP v1's
            defaults: init_scale (2**32), scale_factor (2), scale_window (1000 steps), min_scale
            (1), delayed_shift (1 skipped step), consecutive_hysteresis (False).

    Raises:
        OptionError: `optimizer` is no optimizer, or arguments for the loss scale are wrong.
    """

    _step_supports_amp_scaling = False

    def __init__(
        self, optimizer: torch.optim.Optimizer, static_loss_scale: float | None = 1.0,
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
        scale = LossScale.of(static_loss_scale, dynamic_loss_scale, dynamic_loss_args)
        self._inner = optimizer  # no super().__init__(): groups and state are the inner one's
        session.current()  # raises if there is no session
        register_optimizer(optimizer)
        register_wrapped(self)
        self._scale, self._update = scale, MasterUpdate(optimizer, scale)
        model = current_parallel()
        if (static_loss_scale != 1.0 or dynamic_loss_scale) and not _is_scaled():
            warnings.warn(_UNSCALED, stacklevel=2)
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
        With fp16=True, all ranks skip the step if a gradient of any rank is infinite or NaN.

        Args:
            closure: Must be None.

        Returns:
            Result of the wrapped optimizer's `step`; None if the step was skipped.

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
        model = current_parallel()
        if model is not None and model.masters is not None:
            return self._update.step(model, model.masters)
        host = None if model is None else model.host_update
        if host is None:
            return self._inner.step()
        refuse_in_step("DistributedOptimizer.step()")
        gradients = host.gradients(each for group in self.param_groups for each in group["params"])
        return host.step(self._inner, gradients, {})[0]

    @property
    def overflow(self) -> bool:
        """True if a gradient of any rank was infinite or NaN in the latest step with fp16=True."""
        return self._update.overflow

    @property
    def loss_scale(self) -> float:
        """Factor of the loss in the next step; 1 without fp16."""
        return self._scale.value if _is_scaled() else 1.0

    @loss_scale.setter
    def loss_scale(self, value: float) -> None:
        self._scale.value = float(value)

    @property
    def loss_scaler(self) -> LossScale | None:
        """Loss scale with its counters; None without fp16."""
        return self._scale if _is_scaled() else None

    def update_master_grads(self) -> None:
        """Divide gradients by the loss scale, and check those of all ranks; every rank calls it.

        `overflow` has the result of the check. `clip_master_grads` and `step` do this by
        themselves. Without master weights, nothing happens.
        """
        model = current_parallel()
        if model is not None and model.masters is not None:
            self._update.prepare(model, model.masters)

    def clip_master_grads(self, max_norm: float, norm_type: float = 2.0) -> float:
        """Clip the gradients by their norm over all stages, without the loss scale.

        Every rank has to call it, after the step function and before `step`. It works without
        fp16, too, as `torch.nn.utils.clip_grad_norm_` does.

        Args:
            max_norm: Largest norm of the gradients afterwards.
            norm_type: Order of the norm, as in `torch.nn.utils.clip_grad_norm_`.

        Returns:
            Norm before clipping; -1 if a gradient of any rank is infinite or NaN with fp16=True, so
            that `step` will be skipped.
        """
        model = current_parallel()
        if model is None or model.masters is None:
            parameters = [each for group in self.param_groups for each in group["params"]]
            return float(clip_grad_norm_(parameters, max_norm, norm_type))
        return self._update.clip(model, model.masters, max_norm, norm_type)

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Set the gradients of this rank's parameters to None; to 0 if `set_to_none` is False."""
        self._inner.zero_grad(set_to_none=set_to_none)
        model = current_parallel()
        self._update.forget(None if model is None else model.masters)

    def state_dict(self) -> dict[str, Any]:
        """Return the optimizer state of all stages, with parameters numbered as in the whole model.

        Once the model is split, all ranks of the replica have to call this method: a call waits for
        the others. Either all replicas call it, or only the replica with dp_rank 0. With
        sharding="optimizer" or "full", all ranks of the world have to call it, because each replica
        has only a part of the state.

        With fp16=True, the key "_smp_loss_scale" has the state of the loss scale. Master weights
        are under "_smp_master_weights", by the names of parameters.
        """
        model = current_parallel()
        if model is None or not model.is_cut:
            return {**self._inner.state_dict(), **self._scale_state()}
        return {**whole_state(self._inner, model), **self._scale_state()}

    def local_state_dict(self) -> dict[str, Any]:
        """Return the optimizer state of this rank only, marked by SMP's key "_smp_is_partial"."""
        model = current_parallel()
        if model is None or not model.is_cut:
            return {**self._inner.state_dict(), **self._scale_state(), "_smp_is_partial": True}
        return {**local_state(self._inner, model), **self._scale_state()}

    def _scale_state(self) -> dict[str, Any]:
        return {LOSS_SCALE: self._scale.state_dict()} if _is_scaled() else {}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Load the state of this rank's parameters from a state dict.

        If the model is not split yet, the state dict is kept, and loaded when the first step splits
        the model.

        Args:
            state_dict: Result of `state_dict`, or of `local_state_dict` for the same stages.

        Raises:
            OptionError: The state dict is for other parameters, such as parameters of another rank.
        """
        if LOSS_SCALE in state_dict:
            self._scale.load_state_dict(state_dict[LOSS_SCALE])
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


def _is_scaled() -> bool:
    """Return True if the loss is scaled: by the option of the current model, or of the session."""
    model = current_parallel()
    return session.current().options.fp16 if model is None else model.settings.fp16
