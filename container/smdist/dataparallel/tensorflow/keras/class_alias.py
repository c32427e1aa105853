# SPDX-License-Identifier: Apache-2.0
"""Alias of a class: makes Keras save a class in a model under the name of another class."""

from __future__ import annotations

from typing import Any

import keras


def named_as(base: type, made: type) -> type:
    """Make Keras save the class `made` under the name of `base`, and return `made`."""
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
    """Return Keras's table of registered class names, by class, in which entries can be set.

    Keras's public functions for registration would replace the class that has the name already.
    """
    from keras.src.saving.object_registration import GLOBAL_CUSTOM_NAMES

    names: dict[Any, str] = GLOBAL_CUSTOM_NAMES
    return names
