# SPDX-License-Identifier: Apache-2.0
"""Keras compiles with XLA where it can (jit_compile="auto"); for collectives there is no kernel.

"auto" asks only the model's layers, never its optimizer. So it is taught to ask, for models
with a DistributedOptimizer; jit_compile=True is refused when the step is traced (library.py).
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import cache
from typing import Any, Final

import keras

_LOG: Final = logging.getLogger("smdist.dataparallel.tensorflow")
_METHOD: Final = "_resolve_auto_jit_compile"


@cache
def let_auto_mean_no_xla() -> None:
    """Let jit_compile="auto" be False for models with a DistributedOptimizer, from now on."""
    original = getattr(keras.Model, _METHOD, None)
    if original is None:  # an older Keras: "auto" on a GPU meets the refusal
        return

    setattr(keras.Model, _METHOD, asking_the_optimizer(original))


def asking_the_optimizer(original: Callable[[Any], bool]) -> Callable[[Any], bool]:
    """What "auto" means: Keras's answer, unless the model's optimizer is distributed."""

    def resolve(model: Any) -> bool:
        from smdist.dataparallel.tensorflow.keras.optimizer import is_distributed

        wanted = bool(original(model))
        if wanted and is_distributed(getattr(model, "optimizer", None)):
            _say()
            return False
        return wanted

    return resolve


@cache
def _say() -> None:
    _LOG.warning('jit_compile="auto" is off: XLA has no kernel for DistributedOptimizer')
