# SPDX-License-Identifier: Apache-2.0
"""Export of a split model as a SavedModel of TensorFlow, for inference without smdist."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import keras
import tensorflow as tf

from smdist.modelparallel.tensorflow.keras_capture import automatic_names_kept
from smdist.modelparallel.tensorflow.keras_capture.layer_paths import all_variables
from smdist.modelparallel.tensorflow.keras_checkpoint.write_keras_file import (
    SavedState,
    WholeState,
    on_first_rank,
)

_MAIN: Final = "saved_model.pb"  # a folder with this file is a SavedModel, so it is written last


@automatic_names_kept()
def export_saved_model(state: SavedState, example: Any, path: str | os.PathLike[str]) -> None:
    """Write a folder with the whole model; all ranks must call this.

    Args:
        state: The split model.
        example: Inputs of one microbatch, in the structure that the model takes.
        path: Folder; a SavedModel in it is replaced.

    Raises:
        KerasCheckpointError: The folder cannot be written; raised on every rank.
    """
    weights = SavedState(split=state.split)

    def write(whole: WholeState) -> None:
        with _loaded(whole), _replacing(Path(path)) as unfinished:
            module = _module(state, example)
            tf.saved_model.save(
                module, str(unfinished), signatures={"serving_default": module.signature}
            )

    on_first_rank(weights, Path(path), write)


@contextmanager
def _loaded(whole: WholeState) -> Iterator[None]:
    """Give rank 0 the values of all stages within this context."""
    before = [(variable, variable._value) for variable in whole.absent]
    try:
        for variable, value in before:
            variable._value = tf.Variable(value.numpy(), trainable=False, dtype=variable.dtype)
        yield
    finally:
        for variable, value in before:
            variable._value = value


def _module(state: SavedState, example: Any) -> Any:
    """Return a module with the model's variables, and functions for batches of any size.

    `serve` takes and returns the model's structures. `signature` takes tensors by name ("input_0"
    and so on), and returns a dict ("output_0" and so on).
    """
    split, module = state.split, tf.Module()
    model, run = split.model, split.run or split.model
    options = {"training": False} if model._call_has_training_arg else {}
    specs = [
        tf.TensorSpec([None, *each.shape[1:]], each.dtype, name=f"input_{number}")
        for number, each in enumerate(keras.tree.flatten(example))
    ]

    def serve(structure: Any) -> Any:
        return run(structure, **options)

    def signature(*tensors: Any) -> dict[str, Any]:
        found = keras.tree.flatten(serve(keras.tree.pack_sequence_as(example, tensors)))
        return {f"output_{number}": each for number, each in enumerate(found)}

    plain = tf.autograph.experimental.do_not_convert
    structure = keras.tree.pack_sequence_as(example, specs)
    module.values = [each.value for each in all_variables(model)]
    module.serve = tf.function(plain(serve), input_signature=[structure])
    module.signature = tf.function(plain(signature), input_signature=specs)
    return module


@contextmanager
def _replacing(path: Path) -> Iterator[Path]:
    """Yield a new folder whose content is moved to `path` if no error occurs."""
    path.mkdir(parents=True, exist_ok=True)
    unfinished = Path(tempfile.mkdtemp(dir=path, prefix=".saved_model."))
    try:
        yield unfinished
        (path / _MAIN).unlink(missing_ok=True)
        for each in sorted(unfinished.iterdir(), key=lambda found: found.name == _MAIN):
            target = path / each.name
            if target.is_dir():
                shutil.rmtree(target)
            each.replace(target)
    finally:
        shutil.rmtree(unfinished)
