# SPDX-License-Identifier: Apache-2.0
"""A class that Keras writes into a saved model under another class's name."""

from __future__ import annotations

from typing import Any

import keras


def named_as(base: type, made: type) -> type:
    """Let `made` be saved as `base`, and return it."""
    made.__name__ = base.__name__
    if getattr(keras.optimizers, base.__name__, None) is base:
        made.__module__ = "keras.optimizers"  # as Keras names its own
        return made
    made.__module__ = base.__module__
    registered = keras.saving.get_registered_name(base)
    if registered != base.__name__:
        _names()[made] = registered
    return made


def _names() -> dict[Any, str]:
    """Keras's register of names by class: its public functions would replace `base` in it."""
    from keras.src.saving.object_registration import GLOBAL_CUSTOM_NAMES

    names: dict[Any, str] = GLOBAL_CUSTOM_NAMES
    return names
