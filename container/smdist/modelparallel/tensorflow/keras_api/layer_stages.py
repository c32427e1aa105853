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

    Args:
        stage: Number of the stage, from 0.

    Raises:
        OptionError: `stage` is not an integer of 0 or more.
    """
    _check_stage(stage)
    make = keras.Layer.__init__

    def marked(layer: Any, *args: Any, **kwargs: Any) -> None:
        make(layer, *args, **kwargs)
        object.__setattr__(layer, _MARK, _blocks[-1])

    _blocks.append(stage)
    try:
        if len(_blocks) > 1:
            yield
        else:
            with patch.object(keras.Layer, "__init__", marked):
                yield
    finally:
        _blocks.pop()


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
