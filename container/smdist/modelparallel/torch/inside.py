# SPDX-License-Identifier: Apache-2.0
"""Whether a microbatch of a step is running, for what belongs after the step.

The function of a step runs once per microbatch, behind the model's call on the last stage alone:
what waits for all ranks would wait forever there, and gradients are not there yet.
"""

from __future__ import annotations

from typing import TYPE_CHECKING
from weakref import WeakSet

from sagemaker_dist.errors import OptionError

if TYPE_CHECKING:
    from smdist.modelparallel.torch.parallel.parallel import Parallel

_models: WeakSet[Parallel] = WeakSet()


def enter(model: Parallel) -> None:
    """Know a model for as long as it lives."""
    _models.add(model)


def running() -> list[Parallel]:
    """Models of which a microbatch runs."""
    return [model for model in _models if model._state.scene is not None]


def refuse_inside(what: str) -> None:
    """Raise an error where a microbatch of a step is running.

    Raises:
        OptionError: One is.
    """
    if running():
        raise OptionError(
            f"{what} is called inside a step",
            "a step runs its function once per microbatch, and gradients are there when it returns",
            "Call it after the step, outside of the function",
        )
