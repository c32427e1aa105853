# SPDX-License-Identifier: Apache-2.0
"""Change of Keras's jit_compile="auto", which compiles with XLA: collectives have no XLA kernel.

Keras's "auto" considers only the layers of a model, not its optimizer. Here it also considers
the optimizer. jit_compile=True is refused when the step is traced (op_library.py).
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
def let_auto_mean_no_xla() -> None:
    """Patch Keras so that jit_compile="auto" is False for models with a DistributedOptimizer."""
    original = getattr(keras.Model, _METHOD, None)
    if original is None:  # an older Keras: "auto" on a GPU is refused when the step is traced
        return

    setattr(keras.Model, _METHOD, asking_the_optimizer(original))


def asking_the_optimizer(original: Callable[[Any], bool]) -> Callable[[Any], bool]:
    """Wrap Keras's choice for "auto", which becomes False if the optimizer is distributed."""

    def resolve(model: Any) -> bool:
        wanted = bool(original(model))
        if wanted and is_distributed(getattr(model, "optimizer", None)):
            _say()
            return False
        return wanted

    return resolve


@cache
def _say() -> None:
    _LOG.warning('jit_compile="auto" is off: XLA has no kernel for DistributedOptimizer')
