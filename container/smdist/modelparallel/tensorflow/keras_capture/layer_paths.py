# SPDX-License-Identifier: Apache-2.0
"""Names of the layers and variables of a Keras model, which are unique and equal on all ranks."""

from __future__ import annotations

from typing import Any

import keras


def layer_paths(model: Any) -> dict[int, str]:
    """Return the path of each layer in a model, by id(): names joined by "."; "" for the model.

    A layer that occurs several times has the path of its first occurrence.
    """
    paths: dict[int, str] = {id(model): ""}
    taken: set[str] = {""}
    _visit(model, "", paths, taken)
    return paths


def _visit(layer: Any, prefix: str, paths: dict[int, str], taken: set[str]) -> None:
    inner = list(_layers_of(layer))
    for each in inner:
        if id(each) not in paths:
            paths[id(each)] = unique(f"{prefix}{each.name}", taken)
            _visit(each, f"{paths[id(each)]}.", paths, taken)


def _layers_of(layer: Any) -> list[Any]:
    """Return the layers directly within a layer, each once, in the order of its attributes."""
    found: list[Any] = layer.layers if isinstance(layer, keras.Model) else layer._layers
    return found


def variable_names(model: Any) -> dict[int, str]:
    """Return a unique name of each variable of a model, by id(); usually Keras's path."""
    taken: set[str] = set()
    return {id(each): unique(each.path, taken) for each in all_variables(model)}


def all_variables(model: Any) -> list[Any]:
    """Return the variables of a whole model, also if its class has others for users."""
    found: list[Any] = keras.Model.variables.fget(model)
    return found


def all_weights(model: Any) -> list[Any]:
    """Return the variables of a whole model without the states of random generators."""
    found: list[Any] = keras.Model.weights.fget(model)
    return found


def trained_variables(model: Any) -> list[Any]:
    """Return the trained variables of a whole model, also if its class has others for users."""
    return [each for each in all_variables(model) if each.trainable] if model.trainable else []


def unique(name: str, taken: set[str]) -> str:
    """Return a name that is not taken yet, with "@2", "@3" and so on appended if necessary."""
    number, found = 1, name
    while found in taken:
        number += 1
        found = f"{name}@{number}"
    taken.add(found)
    return found
