# SPDX-License-Identifier: Apache-2.0
"""`smp.DistributedOptimizer`: any optimizer of PyTorch's, on the parameters of this rank."""

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
    """Wrapper of an optimizer; it may be made before the model is cut, and schedulers accept it.

    As in SMP v1, `step` and `zero_grad` are for the parameters of this rank, and `state_dict`
    gathers the whole state. Unlike in SMP, that state has names beside its numbers, so it loads
    under any layout. Losses are scaled by a GradScaler.

    Args:
        optimizer: Optimizer of `torch.optim`, or one like it, on the model's parameters.
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
            why="a torch optimizer is wrapped, once",
            hint="Pass one such as torch.optim.AdamW(model.parameters())",
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
        """Optimizer that is wrapped."""
        return self._inner

    @property
    def param_groups(self) -> list[dict[str, Any]]:  # type: ignore[override]
        """Parameter groups of the wrapped optimizer; after the cut, with this rank's parameters."""
        return self._inner.param_groups

    @property
    def state(self) -> Any:  # type: ignore[override]
        """State of the wrapped optimizer."""
        return self._inner.state

    @property
    def defaults(self) -> dict[str, Any]:  # type: ignore[override]
        """Defaults of the wrapped optimizer."""
        return self._inner.defaults

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Update the parameters of this rank; every rank calls it.

        With `gradient_clipping` all gradients of the model are clipped together first, as before
        the step of any optimizer of the model.

        Raises:
            OptionError: There is a closure; it would have to run steps of the pipeline.
        """
        require(
            closure is None,
            what="optimizer.step got a closure",
            why="it would run steps of the pipeline on its own",
            hint="Run the step yourself, then call optimizer.step()",
        )
        return self._inner.step()

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Reset the gradients of this rank."""
        self._inner.zero_grad(set_to_none=set_to_none)

    def state_dict(self) -> dict[str, Any]:
        """Return the state of all stages, numbered as in the whole model.

        After the cut this is collective over the ranks of one replica: all replicas may call it, or
        the one of dp_rank 0 alone. With sharding="optimizer" or "full" each replica has a part, so
        all ranks must call it; a call on some of them waits for the others.
        """
        model = current_parallel()
        if model is None or not model.is_cut:
            return self._inner.state_dict()
        return whole_state(self._inner, model)

    def local_state_dict(self) -> dict[str, Any]:
        """Return the state of this rank, with SMP's mark of a part."""
        model = current_parallel()
        if model is None or not model.is_cut:
            return {**self._inner.state_dict(), "_smp_is_partial": True}
        return local_state(self._inner, model)

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Load the result of `state_dict`, or of `local_state_dict` for the same stages.

        Before the cut, loading and its checks wait until the model is cut.

        Raises:
            OptionError: The state is for other parameters, such as another rank's.
        """
        model = current_parallel()
        if model is None:
            plain = {k: value for k, value in state_dict.items() if not k.startswith("_smp_")}
            self._inner.load_state_dict(plain)
        else:
            model.when_cut(lambda: load_state(self._inner, model, state_dict))

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a parameter group; after the cut, with parameters of this rank."""
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
    why = "gradients are scaled and checked by a GradScaler, over all ranks"
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
