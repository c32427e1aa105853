# SPDX-License-Identifier: Apache-2.0
"""`smp.DistributedOptimizer`: any optimizer of PyTorch's, on the parameters of this rank."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch

from sagemaker_dist.errors import OptionError, raise_all, require
from smdist.modelparallel.torch import session
from smdist.modelparallel.torch.optimizer.rewriting import local_parameters, rewrite
from smdist.modelparallel.torch.optimizer.state import load_state, local_state, whole_state
from smdist.modelparallel.torch.parallel import active

_SCALER = "Use smp.amp.GradScaler with torch.autocast"


class DistributedOptimizer(torch.optim.Optimizer):
    """Wraps an optimizer: it may be made before the model is cut, and schedulers take it.

    As in SMP v1, `step` and `zero_grad` are for the parameters of this rank, and `state_dict`
    gathers. What differs here: the whole state has names beside its numbers, so it loads under any
    layout. Loss scales are a GradScaler's.

    Args:
        optimizer: Of `torch.optim` or like it, on the model's parameters.
        static_loss_scale: Must be 1.
        dynamic_loss_scale: Must be False.
        dynamic_loss_args: Must be left out.

    Raises:
        OptionError: It is no optimizer, or an option asks for what is elsewhere.
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
            mend="Pass one such as torch.optim.AdamW(model.parameters())",
        )
        raise_all(_refused(static_loss_scale, dynamic_loss_scale, dynamic_loss_args))
        self._inner = optimizer  # and no super().__init__: groups and state are the other's
        session.current()  # or it would not know where it is
        active.enter_optimizer(optimizer)
        active.enter_wrapped(self)
        model = active.model()
        if model is not None and model.is_cut:
            rewrite(optimizer, local_parameters(model.stages))

    @property
    def optimizer(self) -> torch.optim.Optimizer:
        """The one that is wrapped."""
        return self._inner

    @property
    def param_groups(self) -> list[dict[str, Any]]:  # type: ignore[override]
        """Its own, with the parameters of this rank once the model is cut."""
        return self._inner.param_groups

    @property
    def state(self) -> Any:  # type: ignore[override]
        """Its own."""
        return self._inner.state

    @property
    def defaults(self) -> dict[str, Any]:  # type: ignore[override]
        """Its own."""
        return self._inner.defaults

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Update the parameters of this rank; every rank calls it.

        With `gradient_clipping` all gradients of the model are clipped together first, as before
        the step of any optimizer of the model.

        Raises:
            OptionError: There is a closure: it would have to be a step of the pipeline.
        """
        require(
            closure is None,
            what="optimizer.step got a closure",
            why="it would run steps of the pipeline on its own",
            mend="Run the step yourself, then call optimizer.step()",
        )
        return self._inner.step()

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Forget the gradients of this rank."""
        self._inner.zero_grad(set_to_none=set_to_none)

    def state_dict(self) -> dict[str, Any]:
        """The state of all stages, numbered as the whole model is.

        Once the model is cut it is collective over the ranks of one replica: all replicas may call
        it, or that of dp_rank 0 alone. With sharding="optimizer" or "full" each replica has a part,
        and all ranks must call it: where only some do, these wait for the others.
        """
        model = active.model()
        if model is None or not model.is_cut:
            return self._inner.state_dict()
        return whole_state(self._inner, model)

    def local_state_dict(self) -> dict[str, Any]:
        """The state of this rank, marked as a part as SMP marks it."""
        model = active.model()
        if model is None or not model.is_cut:
            return {**self._inner.state_dict(), "_smp_is_partial": True}
        return local_state(self._inner, model)

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Load what `state_dict` gave, or `local_state_dict` of the same stages.

        Before the model is cut it waits until then.

        Raises:
            OptionError: It is of other parameters, such as another rank's; once the model is cut.
        """
        model = active.model()
        if model is None:
            plain = {k: value for k, value in state_dict.items() if not k.startswith("_smp_")}
            self._inner.load_state_dict(plain)
        else:
            model.when_cut(lambda: load_state(self._inner, model, state_dict))

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a group, of parameters of this rank once the model is cut."""
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
        yield OptionError(f"static_loss_scale is {static!r}", why, _SCALER)
    if dynamic:
        yield OptionError(f"dynamic_loss_scale is {dynamic!r}", why, _SCALER)
    if arguments:
        yield OptionError(f"dynamic_loss_args is {dict(arguments)!r}", why, _SCALER)
