# SPDX-License-Identifier: Apache-2.0
"""Patch of Keras so that jit_compile="auto" does not compile a DistributedOptimizer with XLA.

XLA has no kernel for collectives, and Keras's "auto" considers only the layers of a model, not
its optimizer. jit_compile=True raises an error when the step is traced (op_library.py).
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import cache
from typing import Any, Final

import keras

from smdist.dataparallel.tensorflow.keras.reducing_mixins import is_distributed

_LOG: Final = logging.getLogger("smdist.dataparallel.tensorflow")
_METHOD: Final = "_resolve_auto_jit_compile"


@cache
def disable_xla_for_auto() -> None:
    """Patch Keras so that jit_compile="auto" means False for a model with DistributedOptimizer."""
    original = getattr(keras.Model, _METHOD, None)
    if original is None:  # an older Keras: "auto" on a GPU raises when the step is traced
        return

    setattr(keras.Model, _METHOD, without_xla_if_distributed(original))


def without_xla_if_distributed(original: Callable[[Any], bool]) -> Callable[[Any], bool]:
    """Return Keras's function `original`, changed to return False for distributed optimizers.

    Keras's function decides for a model whether jit_compile="auto" means True.
    """

    def resolve(model: Any) -> bool:
        wanted = bool(original(model))
        if wanted and is_distributed(getattr(model, "optimizer", None)):
            _warn()
            return False
        return wanted

    return resolve


@cache
def _warn() -> None:
    _LOG.warning(
        'jit_compile="auto" does not compile this model with XLA, because XLA has no kernel for the'
        " collectives of DistributedOptimizer"
    )
