# SPDX-License-Identifier: Apache-2.0
"""Stages of layers that the script chooses: `smp.partition` and `smp.set_partition`.

They count with `auto_partition=False`.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final
from unittest.mock import patch

import keras

from sagemaker_dist.errors import OptionError
from smdist.modelparallel.tensorflow.keras_capture.layer_paths import layer_paths

_MARK: Final = "_smp_stage"
_blocks: list[int] = []  # stages of the blocks around this place, the innermost last


@contextmanager
def partition(stage: int) -> Iterator[None]:
    """Assign every layer that is created in the block to a stage; the innermost block counts.

    In the call() of a model, the layers that are called in the block are assigned, unless they have
    a stage.

    Args:
        stage: Number of the stage, from 0.

    Raises:
        OptionError: `stage` is not an integer of 0 or more.
    """
    _check_stage(stage)
    _blocks.append(stage)
    try:
        if len(_blocks) > 1:
            yield
        else:
            with _marking():
                yield
    finally:
        _blocks.pop()


@contextmanager
def _marking() -> Iterator[None]:
    """Mark layers that are created or called in this context, but not those within them."""
    make, call, depth = keras.Layer.__init__, keras.Layer.__call__, [0]

    def made(layer: Any, *args: Any, **kwargs: Any) -> None:
        make(layer, *args, **kwargs)
        object.__setattr__(layer, _MARK, _blocks[-1])

    def called(layer: Any, *args: Any, **kwargs: Any) -> Any:
        if not depth[0] and getattr(layer, _MARK, None) is None:
            object.__setattr__(layer, _MARK, _blocks[-1])
        depth[0] += 1
        try:
            return call(layer, *args, **kwargs)
        finally:
            depth[0] -= 1

    with patch.multiple(keras.Layer, __init__=made, __call__=called):
        yield


def set_partition(layer: Any, stage: int) -> None:
    """Assign a layer to a stage, with all layers within it that have no stage of their own.

    Args:
        layer: Layer of the model.
        stage: Number of the stage, from 0.

    Raises:
        OptionError: `layer` is no layer, or `stage` is not an integer of 0 or more.
    """
    _check_stage(stage)
    if not isinstance(layer, keras.Layer):
        raise OptionError(
            f"layer is {type(layer).__name__}",
            "set_partition assigns a keras.Layer to a stage",
            "Pass a layer of the model",
            about="layer",
        )
    object.__setattr__(layer, _MARK, stage)


def marks_of(model: Any) -> dict[str, int]:
    """Return the stages that the script chose, by the paths of the layers."""
    layers = {id(each): each for each in model._flatten_layers(include_self=True, recursive=True)}
    marks = {}
    for number, path in layer_paths(model).items():
        stage = getattr(layers.get(number), _MARK, None)
        if stage is not None and path:
            marks[path] = stage
    return marks


def _check_stage(stage: object) -> None:
    if not isinstance(stage, int) or isinstance(stage, bool) or stage < 0:
        raise OptionError(
            f"stage is {stage!r}",
            "stages are numbered from 0",
            "Pass an integer of 0 or more",
            about="stage",
        )
