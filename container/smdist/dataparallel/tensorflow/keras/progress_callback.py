# SPDX-License-Identifier: Apache-2.0
"""Progress line of model.fit: its step, and the loss if Keras itself prints none."""

from __future__ import annotations

from typing import Any

import keras

from smdist.dataparallel.tensorflow import progress


class TellingCallback(keras.callbacks.Callback):  # type: ignore[misc]  # untyped
    """Report every step of fit(), counted over its epochs; see docs/metrics.md."""

    def __init__(self) -> None:
        super().__init__()
        self._steps = self._earlier = 0  # steps of this fit(), steps of its earlier epochs

    def on_train_begin(self, logs: Any = None) -> None:  # noqa: ARG002  Keras's
        """Start counting steps at 0."""
        self._steps = 0

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:  # noqa: ARG002  Keras's
        """Continue counting steps where the last epoch ended."""
        self._earlier = self._steps

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Report the step, which may be the last of several that ran as one."""
        self._steps = self._earlier + batch + 1
        is_silent = self.params.get("verbose") == 0  # otherwise Keras prints the loss
        loss = (logs or {}).get("loss") if is_silent else None
        progress.report(step=self._steps, **({} if loss is None else {"loss": loss}))

    def on_train_end(self, logs: Any = None) -> None:  # noqa: ARG002  Keras's
        """Print the last progress line."""
        progress.finish()
