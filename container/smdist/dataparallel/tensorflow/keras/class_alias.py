# SPDX-License-Identifier: Apache-2.0
"""Function that gives a class the name of another class in models that Keras saves."""

from __future__ import annotations

from typing import Any

import keras


def named_as(base: type, made: type) -> type:
    """Make Keras write the name of the class `base` when it saves an object of the class `made`.

    Return `made`.
    """
    made.__name__ = base.__name__
    if getattr(keras.optimizers, base.__name__, None) is base:
        made.__module__ = "keras.optimizers"  # Keras's name for its own optimizers
        return made
    made.__module__ = base.__module__
    registered = keras.saving.get_registered_name(base)
    if registered != base.__name__:
        _names()[made] = registered
    return made


def _names() -> dict[Any, str]:
    """Return Keras's own dict from class to registered name, to which the caller may add a class.

    Keras's public functions for registration are not used, because they would take the name away
    from the class that has it already.
    """
    from keras.src.saving.object_registration import GLOBAL_CUSTOM_NAMES

    names: dict[Any, str] = GLOBAL_CUSTOM_NAMES
    return names
