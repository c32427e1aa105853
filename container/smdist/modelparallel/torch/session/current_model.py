# SPDX-License-Identifier: Apache-2.0
"""Registry of this process's models and optimizers, and a check against calls in steps.

Scripts for SMP wrap a model and an optimizer without passing one to the other, so each must be
found. A step function runs once per microbatch, and only the last stage runs the code after the
model's call: a collective there would wait forever, and gradients are not complete yet.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Protocol, runtime_checkable
from weakref import WeakSet, ref

from torch import nn

from sagemaker_dist.errors import OptionError
from smdist.modelparallel.core.plan import Plan
from smdist.modelparallel.torch import session
from smdist.modelparallel.torch.session.process_groups import Groups
from smdist.modelparallel.torch.session.session import Session


@runtime_checkable
class SplitModel(Protocol):
    """Interface of `Parallel` for packages that `Parallel` imports."""

    @property
    def session(self) -> Session:
        """Session in which the model was made."""

    @property
    def module(self) -> nn.Module:
        """Model of the user; after the cut, only this rank's stages have values in it."""

    @property
    def is_cut(self) -> bool:
        """True once the model is cut into stages."""

    @property
    def is_in_step(self) -> bool:
        """True while the user's code of a microbatch runs."""

    @property
    def stages(self) -> Mapping[int, nn.Module]:
        """Stages of this rank by number; empty before the cut."""

    @property
    def plan(self) -> Plan:
        """Plan with the stages and the schedule."""

    @property
    def groups(self) -> Groups:
        """Process groups of the model."""

    def parameters(self) -> Iterator[nn.Parameter]:
        """Return the parameters of this rank."""

    def when_cut(self, function: Callable[[], None], *, loads: bool = False) -> None:
        """Call a function once the model is cut; at once if it is cut already."""


_models: list[ref[Any]] = []  # in the order of their creation
_optimizers: WeakSet[Any] = WeakSet()
_wrapped: ref[Any] | None = None


def register(model: SplitModel) -> None:
    """Make a model the current one, until another is registered; it is weakly referenced."""
    _models[:] = [ref(each) for each in (*_living(), model)]


def current_model() -> SplitModel | None:
    """Return the latest registered model; None if it was freed or its session has ended."""
    found: SplitModel | None = _models[-1]() if _models and session.is_initialized() else None
    return found if found is not None and found.session is session.current() else None


def require_model() -> SplitModel:
    """Return the current model.

    Raises:
        OptionError: There is none.
    """
    found = current_model()
    if found is None:
        raise OptionError(
            "there is no parallel model for the step",
            "the step has no model among its arguments, and this process has made none",
            "Wrap the model before the step: model = smp.DistributedModel(model)",
        )
    return found


def models_in_step() -> list[SplitModel]:
    """Return the models for which the user's code of a microbatch is running."""
    return [model for model in _living() if model.is_in_step]


def refuse_in_step(what: str) -> None:
    """Raise an error if the call is made in a step function.

    Args:
        what: Name of the call, such as "clip_grad_norm_()".

    Raises:
        OptionError: A microbatch is running.
    """
    if models_in_step():
        raise OptionError(
            f"{what} is called inside a step",
            "a step function runs once per microbatch, and gradients are complete after the step",
            "Call it after the step, outside of the step function",
        )


def register_optimizer(optimizer: Any) -> None:
    """Register an optimizer, whose parameters the cut of a model replaces by this rank's."""
    _optimizers.add(optimizer)


def optimizers() -> list[Any]:
    """Return the registered optimizers that still exist, in no particular order."""
    return list(_optimizers)


def register_wrapped(optimizer: Any) -> None:
    """Register the latest DistributedOptimizer, which SMP's hooks receive."""
    global _wrapped
    _wrapped = ref(optimizer)


def wrapped_optimizer() -> Any:
    """Return the latest DistributedOptimizer; None if there is none or it was freed."""
    return _wrapped() if _wrapped is not None else None


def _living() -> list[SplitModel]:
    """Return the registered models that still exist, in the order of their creation."""
    return [model for each in _models if (model := each()) is not None]
