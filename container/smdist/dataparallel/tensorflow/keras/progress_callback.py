# SPDX-License-Identifier: Apache-2.0
"""Callback that reports the steps and the loss of model.fit for the progress line.

The loss is reported only if Keras itself prints nothing.
"""

from __future__ import annotations

from typing import Any

import keras

from smdist.dataparallel.tensorflow import progress


class ProgressCallback(keras.callbacks.Callback):  # type: ignore[misc]  # untyped
    """Callback that reports each step of fit(), counted over all epochs, for the progress line."""

    def __init__(self) -> None:
        super().__init__()
        self._steps = self._earlier = 0  # steps of this fit(), steps before the current epoch

    def on_train_begin(self, logs: Any = None) -> None:  # noqa: ARG002  Keras's
        """Reset the number of steps to 0."""
        self._steps = 0

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:  # noqa: ARG002  Keras's
        """Store the number of steps before this epoch."""
        self._earlier = self._steps

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Report the number of the step; Keras may call this once for several steps."""
        self._steps = self._earlier + batch + 1
        is_silent = self.params.get("verbose") == 0  # otherwise Keras prints the loss
        loss = (logs or {}).get("loss") if is_silent else None
        progress.report(step=self._steps, **({} if loss is None else {"loss": loss}))

    def on_train_end(self, logs: Any = None) -> None:  # noqa: ARG002  Keras's
        """Print the last progress line."""
        progress.finish()
