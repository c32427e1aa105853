# SPDX-License-Identifier: Apache-2.0
"""Variables that get memory only where they stay: `smp.delay_param_initialization`.

A delayed variable has a shape and an initializer, and no value. It gets its first value from
`initialize`, or from whatever is assigned to it, such as pretrained weights.
"""

from __future__ import annotations

import gc
import math
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any, Final
from unittest.mock import patch

import keras
import tensorflow as tf
from keras.src.backend.common import global_state
from keras.src.backend.common.variables import Variable

_PENDING: Final = "uninitialized_variables"  # Keras initializes these at the end of any scope
_ASSIGN: Final = "_direct_assign"
_LARGE: Final = 2**20  # bytes; below, a value takes less time than tracing a function
_MUCH: Final = 16 * 2**20  # bytes of lent values that are not left to Python's garbage collection


@contextmanager
def delay_param_initialization(*, enabled: bool = True) -> Iterator[None]:
    """Create the variables of models that are built in the block without memory.

    When the model is split, each rank initializes the variables of its own stages. The values are
    those that they would have had at once, because Keras's initializers have seeds of their own.
    A variable that is created from an array, or to which a value is assigned, has its memory at
    once.

    Args:
        enabled: False to create variables as usual.
    """
    if not enabled:
        yield
        return
    create = Variable.__init__

    def delayed(variable: Any, initializer: Any, *args: Any, **kwargs: Any) -> None:
        if not (callable(initializer) or isinstance(initializer, str)):
            create(variable, initializer, *args, **kwargs)
            return
        before = list(global_state.get_global_attribute(_PENDING, []))
        with keras.StatelessScope(initialize_variables=False):
            create(variable, initializer, *args, **kwargs)
        global_state.set_global_attribute(_PENDING, before)
        object.__setattr__(variable, _ASSIGN, partial(_first_assign, variable))

    with patch.object(Variable, "__init__", delayed):
        yield


def is_delayed(variable: Any) -> bool:
    """Tell whether a variable has no value yet."""
    return variable._value is None


def initialize(variable: Any) -> None:
    """Give a variable its first value, if it has none yet.

    A large value of Keras's initializers is computed in a tf.function, which needs no memory beside
    that of the value; run eagerly, each operation of the initializer has a result of this size.
    """
    if not is_delayed(variable):
        return
    _end_delay(variable)
    first = variable._initializer
    is_plain = isinstance(first, keras.initializers.Initializer)
    if _num_bytes(variable) < _LARGE or not is_plain or not _is_of_keras(first):
        variable._deferred_initialize()
        return
    shape, dtype = tuple(variable.shape), variable._dtype
    compute = tf.function(lambda: first(shape, dtype=dtype), autograph=False)
    variable._initialize(compute.get_concrete_function()())  # called as is, it warns of retracing
    variable._initializer = None


@contextmanager
def lent_values(variables: Sequence[Any]) -> Iterator[None]:
    """Give delayed variables values for the time of the block, to run their layer.

    All elements are equal: 0.01, or 0 for integers.
    """
    delayed = [each for each in variables if is_delayed(each)]
    num_bytes = 0
    with ExitStack() as stack:
        for variable in delayed:
            assign = variable.__dict__.pop(_ASSIGN, None)
            stack.callback(_take_back, variable, assign)
            variable._initialize(tf.fill(variable.shape, _sample(variable)))
            num_bytes += _num_bytes(variable)
        yield
    if num_bytes >= _MUCH:
        gc.collect()  # functions of TensorFlow, which hold the values, are cycles


def _take_back(variable: Any, assign: Any) -> None:
    variable._value = None
    if assign is not None:
        object.__setattr__(variable, _ASSIGN, assign)


def _sample(variable: Any) -> Any:
    dtype = tf.as_dtype(variable._dtype)
    return tf.cast(0.01 if dtype.is_floating else 0, dtype)


def _num_bytes(variable: Any) -> int:
    return int(math.prod(variable.shape) * tf.as_dtype(variable._dtype).size)


def _is_of_keras(initializer: Any) -> bool:
    return type(initializer).__module__.partition(".")[0] == "keras"


def _first_assign(variable: Any, value: Any) -> None:
    """Take an assigned value as the first one, in place of that of the initializer."""
    _end_delay(variable)
    if is_delayed(variable):
        variable._initialize(tf.cast(value, variable._dtype))
        variable._initializer = None
    else:
        variable._direct_assign(value)


def _end_delay(variable: Any) -> None:
    variable.__dict__.pop(_ASSIGN, None)
