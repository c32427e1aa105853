# SPDX-License-Identifier: Apache-2.0
"""Models whose variables get memory only where they stay: `smp.delay_param_initialization`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

import keras
from keras.src.backend.common import global_state

_PENDING: Final = "uninitialized_variables"  # Keras initializes these at the end of any scope


@contextmanager
def delay_param_initialization(*, enabled: bool = True) -> Iterator[None]:
    """Create the variables of models that are built in the block without memory.

    When the model is split, each rank initializes the variables of its own stages. The values are
    those that they would have had at once, because Keras's initializers have seeds of their own.

    Args:
        enabled: False to create variables as usual.
    """
    if not enabled:
        yield
        return
    before = list(global_state.get_global_attribute(_PENDING, []))
    with keras.StatelessScope(initialize_variables=False):
        yield
    global_state.set_global_attribute(_PENDING, before)


def is_delayed(variable: Any) -> bool:
    """Tell whether a variable has no value yet."""
    return variable._value is None


def initialize(variable: Any) -> None:
    """Give a variable its first value, if it has none yet."""
    if is_delayed(variable):
        variable._deferred_initialize()
