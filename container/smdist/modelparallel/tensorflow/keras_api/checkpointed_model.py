# SPDX-License-Identifier: Apache-2.0
"""Files of a distributed model: `save`, `save_weights`, `save_model` and `load_checkpoint`."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from sagemaker_dist.errors import OptionError
from smdist.modelparallel.tensorflow import keras_checkpoint as checkpoint
from smdist.modelparallel.tensorflow.keras_api.model_view import ModelView
from smdist.modelparallel.tensorflow.keras_checkpoint.optimizer_slots import slots_of
from smdist.modelparallel.tensorflow.keras_checkpoint.write_keras_file import SavedState


class CheckpointedModel(ModelView):
    """Base of smp.DistributedModel: reads and writes the whole model, of which a rank has a part.

    Every rank calls each method.
    """

    def own_values(self) -> dict[str, Any]:
        """Return the variables of this rank's stages as arrays, by their names in the model.

        Raises:
            OptionError: The model is not split yet.
        """
        split = self._state().split
        names = split.program.variable_names
        return {names[id(each)]: each.numpy() for each in split.own_variables()}

    def _state(self, epoch: int = 0) -> SavedState:
        """Return what a checkpoint contains."""
        if "trainer" not in self._hidden:
            raise OptionError(
                "the model is not split yet",
                "a checkpoint is written from the stages, which the first batch creates",
                "Save after the first step",
                kind="too_early",
            )
        return SavedState(
            split=self._hidden["split"], optimizer=getattr(self, "optimizer", None),
            slots=self._hidden["slots"], compile=self._hidden.get("compile"), epoch=epoch,
        )  # fmt: skip

    def save(self, filepath: Any, overwrite: bool = True, *, epoch: int | None = None) -> None:
        """Write the whole model with optimizer state to one .keras file; every rank calls this.

        Keras alone can load the file, and so can `load_checkpoint` under another layout.

        Args:
            filepath: Name that ends with ".keras".
            overwrite: False to refuse an existing file.
            epoch: Number of finished epochs, which `load_checkpoint` returns. Default: those of the
                last fit().

        Raises:
            OptionError: The model is not split yet, or the file cannot be written.
        """
        state = self._state(self._hidden.get("epoch", 0) if epoch is None else epoch)
        _require_absent(filepath, overwrite=overwrite)
        checkpoint.save(state, filepath)

    def save_weights(self, filepath: Any, overwrite: bool = True) -> None:
        """Write the whole model's variables to one .weights.h5 file; every rank calls this.

        Args:
            filepath: Name that ends with ".weights.h5".
            overwrite: False to refuse an existing file.

        Raises:
            OptionError: The model is not split yet, or the file cannot be written.
        """
        state = self._state()
        _require_absent(filepath, overwrite=overwrite)
        checkpoint.save_weights(state, filepath)

    def save_model(self, save_path: Any = "/opt/ml/model") -> None:
        """Write the whole model as a SavedModel of TensorFlow; every rank calls this.

        TensorFlow alone can load and serve the folder. Rank 0 needs memory for the whole model. To
        go on with the training, use `save`.

        Args:
            save_path: Folder. Default: the one that SageMaker uploads at the end of a job.

        Raises:
            OptionError: The model is not split yet.
            KerasCheckpointError: The folder cannot be written; raised on every rank.
        """
        state = self._state()
        checkpoint.export_saved_model(state, self._hidden["example"], save_path)

    def saved_state(self, optimizer: Any = None) -> SavedState:
        """Return the content of a checkpoint; `smp.CheckpointManager` calls this.

        Args:
            optimizer: Optimizer of a loop of one's own; None for the one of compile().

        Raises:
            OptionError: The model is not split yet, or the optimizer has other variables.
        """
        state = self._state(self._hidden.get("epoch", 0))
        if optimizer is None or optimizer is state.optimizer:
            return state
        slots = tuple(slots_of(optimizer, self.trainable_variables))
        return replace(state, optimizer=optimizer, slots=slots, compile=None)

    def load_checkpoint(self, filepath: Any) -> int:
        """Load a file of `save` or `save_weights`, written under any layout or by Keras.

        Every rank calls this, after compile(). Before the first batch, the values take their
        places when the model is split.

        Returns:
            Number of finished epochs, for `initial_epoch`; 0 if the file does not say.

        Raises:
            OptionError: The file is missing, damaged or of another model. Before the first batch,
                errors other than a missing file are raised at that batch.
        """
        if "trainer" in self._hidden:
            return checkpoint.load(self._state(), filepath)
        self._hidden["pending"] = filepath
        return checkpoint.epoch_of(filepath)

    def load_weights(self, filepath: Any) -> None:
        """Load a file as `load_checkpoint` does."""
        self.load_checkpoint(filepath)


def _require_absent(path: Any, *, overwrite: bool) -> None:
    if not overwrite and Path(path).exists():
        raise OptionError(
            f"{path} exists",
            "overwrite is False",
            "Pass another name, or overwrite=True",
            about="overwrite",
            kind="conflict",
        )
