# SPDX-License-Identifier: Apache-2.0
"""Callbacks of model.fit with the names of horovod.keras.elastic."""

from __future__ import annotations

from typing import Any

import keras

from sagemaker_dist.errors import require
from smdist.elastic.state import State


class CommitStateCallback(keras.callbacks.Callback):  # type: ignore[misc]  # keras has no types
    """Commits the state every `batches_per_commit` batches, and at the end of each epoch.

    Args:
        state: The state of the training.
        batches_per_commit: Batches from one commit to the next. Default 1.

    Raises:
        OptionError: `batches_per_commit` is no positive number.
    """

    def __init__(self, state: State, batches_per_commit: int = 1) -> None:
        require(
            isinstance(batches_per_commit, int) and batches_per_commit > 0,
            what=f"batches_per_commit is {batches_per_commit!r}",
            why="it is a number of batches, at least 1",
            hint="Pass 1 or more",
            about="batches_per_commit",
        )
        super().__init__()
        self.state, self.batches_per_commit = state, batches_per_commit
        self._left = batches_per_commit

    def on_train_begin(self, logs: Any = None) -> None:  # noqa: ARG002  Keras's
        """Count batches from the beginning, so that all ranks commit at the same batches."""
        self._left = self.batches_per_commit

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:  # noqa: ARG002  Keras's
        """Commit if enough batches have ended."""
        self._left -= 1
        if self._left == 0:
            self.state.commit()
            self._left = self.batches_per_commit

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:  # noqa: ARG002  Keras's
        """Commit."""
        self.state.commit()


class UpdateBatchStateCallback(keras.callbacks.Callback):  # type: ignore[misc]  # keras has no types
    """Sets `state.batch` to the number of the last batch, and to 0 at the end of an epoch.

    Args:
        state: A state with the value `batch`.

    Raises:
        OptionError: The state has no value `batch`.
    """

    def __init__(self, state: State) -> None:
        _check_value(state, "batch")
        super().__init__()
        self.state: Any = state

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:  # noqa: ARG002  Keras's
        """Set the number of the batch."""
        self.state.batch = batch

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:  # noqa: ARG002  Keras's
        """Set the number back."""
        self.state.batch = 0


class UpdateEpochStateCallback(keras.callbacks.Callback):  # type: ignore[misc]  # keras has no types
    """Sets `state.epoch` to the number of epochs that have ended since the start of the training.

    Put it before CommitStateCallback in the list of callbacks. Pass fit() the epochs that are left,
    `epochs=total - state.epoch`, and no initial_epoch: fit() counts from 0 after each loss.

    Args:
        state: A state with the value `epoch`.

    Raises:
        OptionError: The state has no value `epoch`.
    """

    def __init__(self, state: State) -> None:
        _check_value(state, "epoch")
        super().__init__()
        self.state: Any = state
        self._first = 0

    def on_train_begin(self, logs: Any = None) -> None:  # noqa: ARG002  Keras's
        """Take note of the epochs that ended before this call of fit()."""
        self._first = self.state.epoch

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:  # noqa: ARG002  Keras's
        """Set the number of epochs."""
        self.state.epoch = self._first + epoch + 1


def _check_value(state: State, name: str) -> None:
    require(
        hasattr(state, name),
        what=f"the state has no value {name!r}",
        why="the callback sets it",
        hint=f"Make the state with {name}=0",
        about=name,
        kind="missing",
    )
