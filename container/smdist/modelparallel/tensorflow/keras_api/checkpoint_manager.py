# SPDX-License-Identifier: Apache-2.0
"""`smp.CheckpointManager`: numbered checkpoints of a loop of one's own, as in SMP v1.

    checkpoint = tf.train.Checkpoint(net=model, optimizer=optimizer)
    manager = smp.CheckpointManager(checkpoint, max_to_keep=5)

Each checkpoint is one file in Keras's format. `tf.train.Checkpoint` says what belongs to it; its
own save() and restore() cannot be used, since no rank has the whole model.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import keras

from sagemaker_dist.errors import OptionError, raise_all
from smdist.dataparallel.tensorflow.broadcast_objects import broadcast_object
from smdist.modelparallel.tensorflow import keras_checkpoint
from smdist.modelparallel.tensorflow.keras_api.distributed_keras_model import DistributedModel
from smdist.modelparallel.tensorflow.keras_checkpoint.numbered_files import NumberedFiles
from smdist.modelparallel.tensorflow.keras_session import current_session


class CheckpointManager:
    """Numbered checkpoints of a split model and its optimizer in one folder.

    Args:
        checkpoint: `tf.train.Checkpoint` with one smp.DistributedModel, and an optimizer if its
            state is to be saved.
        directory: Folder of the files. Default: the one that SageMaker uploads during a job.
        max_to_keep: Number of files to keep; older ones are deleted. Default: all.
        checkpoint_name: Begin of the files' names, "ckpt-1.keras" and so on.

    Raises:
        OptionError: An argument is wrong, or the checkpoint has other objects; all faults are
            reported.
    """

    def __init__(
        self, checkpoint: Any, directory: Any = "/opt/ml/checkpoints",
        max_to_keep: int | None = None, checkpoint_name: str = "ckpt",
    ) -> None:  # fmt: skip
        current_session()
        tracked = _tracked(checkpoint)
        raise_all(
            [*_name_faults(checkpoint_name, max_to_keep), *_checkpoint_faults(tracked, checkpoint)]
        )
        self._model = next(each for each in tracked.values() if _is_model(each))
        self._optimizer = next((each for each in tracked.values() if _is_optimizer(each)), None)
        self._files = NumberedFiles(Path(directory), checkpoint_name)
        self._max_to_keep = max_to_keep

    @property
    def latest_checkpoint(self) -> str | None:
        """Path of the last file, the same on all ranks; None if there is none.

        All ranks must read it together.
        """
        numbers = self._numbers()
        return str(self._files.path(numbers[-1])) if numbers else None

    def save(self) -> str:
        """Write the next file, and delete files beyond `max_to_keep`; every rank calls this.

        Returns:
            Path of the file.

        Raises:
            OptionError: No step was run yet.
            KerasCheckpointError: The file cannot be written; raised on every rank.
        """
        numbers = self._numbers()
        path = self._files.path(numbers[-1] + 1 if numbers else 1)
        keras_checkpoint.save(self._model.saved_state(self._optimizer), path)
        if current_session().rank == 0 and self._max_to_keep is not None:
            self._files.keep_last(self._max_to_keep)
        return str(path)

    def restore(self) -> str | None:
        """Load the last file, written under any layout; every rank calls this after a step.

        Returns:
            Path of the file; None if there is none.

        Raises:
            OptionError: No step was run yet.
            KerasCheckpointError: The file is damaged or of another model; raised on every rank.
        """
        state, path = self._model.saved_state(self._optimizer), self.latest_checkpoint
        if path is not None:
            keras_checkpoint.load(state, path)
        return path

    def _numbers(self) -> list[int]:
        """Return the numbers of the files as rank 0 sees them; all ranks must call this."""
        is_first = current_session().rank == 0
        found: list[int] = broadcast_object(self._files.numbers() if is_first else None)
        return found


def _tracked(checkpoint: Any) -> Mapping[str, Any]:
    children = getattr(checkpoint, "_trackable_children", None)
    return {} if children is None else {k: v for k, v in children().items() if k != "save_counter"}


def _is_model(value: Any) -> bool:
    return isinstance(value, DistributedModel)


def _is_optimizer(value: Any) -> bool:
    return isinstance(value, keras.optimizers.Optimizer)


def _name_faults(name: object, max_to_keep: object) -> Iterator[OptionError]:
    if not isinstance(name, str) or not name or os.sep in name:
        yield OptionError(
            f"checkpoint_name is {name!r}",
            "it is the begin of the files' names",
            'Pass a name without slashes, such as "ckpt"',
            about="checkpoint_name",
        )
    is_count = type(max_to_keep) is int and max_to_keep >= 1
    if max_to_keep is not None and not is_count:
        yield OptionError(
            f"max_to_keep is {max_to_keep!r}",
            "it is a number of files",
            "Pass an integer of at least 1, or leave it out to keep all",
            about="max_to_keep",
        )


def _checkpoint_faults(tracked: Mapping[str, Any], checkpoint: Any) -> Iterator[OptionError]:
    models = [name for name, each in tracked.items() if _is_model(each)]
    optimizers = [name for name, each in tracked.items() if _is_optimizer(each)]
    others = [name for name in tracked if name not in [*models, *optimizers]]
    if len(models) != 1 or len(optimizers) > 1:
        yield OptionError(
            f"checkpoint is {type(checkpoint).__name__} with {len(models)} distributed models and"
            f" {len(optimizers)} optimizers",
            "a file has one model and at most one optimizer",
            "Pass tf.train.Checkpoint(net=model, optimizer=optimizer)",
            about="checkpoint",
        )
    for name in others:
        yield OptionError(
            f"checkpoint has {name!r}, of type {type(tracked[name]).__name__}",
            "a file in Keras's format has a model and its optimizer alone",
            "Leave it out; the number of steps is in optimizer.iterations",
            about=("checkpoint", name),
            kind="unsupported",
        )
