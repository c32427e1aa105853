# SPDX-License-Identifier: Apache-2.0
"""The model and the optimizers of this process: they meet here, in whatever order they are made.

SMP's scripts wrap both without passing one to the other.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from weakref import WeakSet, ref

from sagemaker_dist.errors import OptionError
from smdist.modelparallel.torch import session

if TYPE_CHECKING:
    from smdist.modelparallel.torch.parallel.parallel import Parallel

_model: ref[Parallel] | None = None
_optimizers: WeakSet[Any] = WeakSet()
_wrapped: ref[Any] | None = None


def enter(model: Parallel) -> None:
    """This is the model from now on."""
    global _model
    _model = ref(model)


def model() -> Parallel | None:
    """The model that was made last and is still there, of the session that runs."""
    found = _model() if _model is not None and session.is_initialized() else None
    return found if found is not None and found.session is session.current() else None


def the_model() -> Parallel:
    """The same, where there must be one.

    Raises:
        OptionError: There is none.
    """
    found = model()
    if found is None:
        raise OptionError(
            "there is no model to run",
            "a step runs one model",
            "Wrap it: smp.DistributedModel(...)",
        )
    return found


def enter_optimizer(optimizer: Any) -> None:
    """Its parameters become the local ones when the model is cut."""
    _optimizers.add(optimizer)


def optimizers() -> list[Any]:
    """Those that are still there, in no order."""
    return list(_optimizers)


def enter_wrapped(optimizer: Any) -> None:
    """The DistributedOptimizer that was made last: hooks are given it."""
    global _wrapped
    _wrapped = ref(optimizer)


def wrapped_optimizer() -> Any:
    """That one, or None."""
    return _wrapped() if _wrapped is not None else None
