# SPDX-License-Identifier: Apache-2.0
"""Registry of this process's models and optimizers, and a check against calls inside a step.

A script for SMP wraps a model and an optimizer without passing one to the other. So the library
looks them up in this registry.

Some calls, such as gradient clipping, are refused inside a step function (`refuse_in_step`). A step
function runs once per microbatch, and gradients are complete only after the last microbatch. And
the code after the model's call runs only on the rank of the last stage, so a collective there would
wait forever.
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
    """Interface of the model class `Parallel`, for modules that cannot import `Parallel` itself.

    These are the modules that `Parallel` imports.
    """

    @property
    def session(self) -> Session:
        """Session in which the model was made."""

    @property
    def module(self) -> nn.Module:
        """User's model; once it is split, only tensors of this rank's stages have values."""

    @property
    def is_cut(self) -> bool:
        """True once the model is split into stages, which its first step does."""

    @property
    def is_in_step(self) -> bool:
        """True while the user's step function runs for a microbatch of this model."""

    @property
    def stages(self) -> Mapping[int, nn.Module]:
        """Stages of this rank, by stage number; empty before the model is split."""

    @property
    def plan(self) -> Plan:
        """Plan of the model: the modules of each stage, and the schedule."""

    @property
    def groups(self) -> Groups:
        """Process groups of this rank, such as the group of its pipeline."""

    @property
    def masters(self) -> Any:
        """Master weights of this rank (`MasterWeights`); None if there are none."""

    @property
    def host_update(self) -> Any:
        """Object that runs optimizer steps on the CPU (`HostUpdate`); None without offload."""

    def parameters(self) -> Iterator[nn.Parameter]:
        """Return an iterator over this rank's parameters; before the split, over all parameters."""

    def when_cut(self, function: Callable[[], None], *, loads: bool = False) -> None:
        """Call a function when the model is split into stages; now, if the model is split already.

        Args:
            function: Function to call, without arguments or result.
            loads: True if the function loads all values of the model, so that they need not be
                initialised when a model on the meta device is split.
        """


_models: list[ref[Any]] = []  # in the order of their creation
_optimizers: WeakSet[Any] = WeakSet()
_wrapped: ref[Any] | None = None


def register(model: SplitModel) -> None:
    """Make this model the current one. Only a weak reference to the model is kept."""
    _models[:] = [ref(each) for each in (*living_models(), model)]


def current_model() -> SplitModel | None:
    """Return the latest registered model; None if it was freed or its session has ended."""
    found: SplitModel | None = _models[-1]() if _models and session.is_initialized() else None
    return found if found is not None and found.session is session.current() else None


def require_model() -> SplitModel:
    """Return the current model: the latest that was registered.

    Raises:
        OptionError: No model was registered, or the latest model was freed, or its session has
            ended.
    """
    found = current_model()
    if found is None:
        raise OptionError(
            "there is no parallel model for the step",
            "the step has no model among its arguments, and this process has made none",
            "Wrap the model before the step: model = smp.DistributedModel(model)",
            kind="missing",
        )
    return found


def models_in_step() -> list[SplitModel]:
    """Return the registered models whose step function is running for a microbatch now."""
    return [model for model in living_models() if model.is_in_step]


def refuse_in_step(what: str) -> None:
    """Raise an error if a step function is running. Use this in calls that a step must not make.

    Args:
        what: Name of the call, for the error's text, such as "clip_grad_norm_()".

    Raises:
        OptionError: A step function is running for a microbatch.
    """
    if models_in_step():
        raise OptionError(
            f"{what} is called inside a step",
            "a step function runs once per microbatch, and gradients are complete after the step",
            "Call it after the step, outside of the step function",
            about=tuple(what.removesuffix("()").split(".")),
            kind="inside_step",
        )


def register_optimizer(optimizer: Any) -> None:
    """Register an optimizer, whose parameters change when the model is split.

    The optimizer then gets this rank's parameters in place of the whole model's. Only a weak
    reference to the optimizer is kept.
    """
    _optimizers.add(optimizer)


def optimizers() -> list[Any]:
    """Return the registered optimizers that still exist, in no particular order."""
    return list(_optimizers)


def register_wrapped(optimizer: Any) -> None:
    """Register a DistributedOptimizer as the latest one, which `wrapped_optimizer` returns."""
    global _wrapped
    _wrapped = ref(optimizer)


def wrapped_optimizer() -> Any:
    """Return the latest DistributedOptimizer; None if there is none or it was freed."""
    return _wrapped() if _wrapped is not None else None


def living_models() -> list[SplitModel]:
    """Return the registered models that still exist, in the order of their creation."""
    return [model for each in _models if (model := each()) is not None]
