# SPDX-License-Identifier: Apache-2.0
"""Models and optimizers of this process, for calls that name neither, and models whose step runs.

SMP's scripts wrap a model and an optimizer without passing one to the other. The function of a step
runs once per microbatch, and only the last stage runs the code after the model's call: a collective
there would wait forever, and gradients are not complete yet.
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
    """A model whose stages are on several ranks, as code below `Parallel` sees it."""

    @property
    def session(self) -> Session:
        """Session that the model was made in."""

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
        """Stages of this rank by number; none before the cut."""

    @property
    def plan(self) -> Plan:
        """Plan that the model was cut by."""

    @property
    def groups(self) -> Groups:
        """Process groups of the model."""

    def parameters(self) -> Iterator[nn.Parameter]:
        """Parameters of this rank."""

    def when_cut(self, function: Callable[[], None], *, loads: bool = False) -> None:
        """Call a function once the model is cut."""


_models: list[ref[Any]] = []  # in the order of their creation
_optimizers: WeakSet[Any] = WeakSet()
_wrapped: ref[Any] | None = None


def register(model: SplitModel) -> None:
    """Register a model for as long as it lives; it is the current one until another is made."""
    _models[:] = [ref(each) for each in (*_living(), model)]


def current_model() -> SplitModel | None:
    """Return the model that was made last, if it still lives and its session still runs."""
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
            "there is no model to run",
            "a step runs one model",
            "Wrap it: smp.DistributedModel(...)",
        )
    return found


def models_in_step() -> list[SplitModel]:
    """Return the models of which a microbatch is running."""
    return [model for model in _living() if model.is_in_step]


def refuse_in_step(what: str) -> None:
    """Refuse a call while a microbatch of a step is running.

    Raises:
        OptionError: A microbatch is running.
    """
    if models_in_step():
        raise OptionError(
            f"{what} is called inside a step",
            "a step runs its function once per microbatch, and gradients are there when it returns",
            "Call it after the step, outside of the function",
        )


def register_optimizer(optimizer: Any) -> None:
    """Give this optimizer the local parameters when the model is cut."""
    _optimizers.add(optimizer)


def optimizers() -> list[Any]:
    """Return the registered optimizers that still live, in no order."""
    return list(_optimizers)


def register_wrapped(optimizer: Any) -> None:
    """Register the latest DistributedOptimizer, which hooks receive."""
    global _wrapped
    _wrapped = ref(optimizer)


def wrapped_optimizer() -> Any:
    """Return the DistributedOptimizer that was made last, or None."""
    return _wrapped() if _wrapped is not None else None


def _living() -> list[SplitModel]:
    return [model for each in _models if (model := each()) is not None]
