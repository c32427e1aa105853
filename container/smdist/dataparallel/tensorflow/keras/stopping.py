# SPDX-License-Identifier: Apache-2.0
"""A clean end of model.fit when the job is stopped, or its spot instances are taken back."""

from __future__ import annotations

import signal
import threading
from typing import Any

import keras

from sagemaker_dist.errors import require
from smdist.dataparallel.tensorflow import collectives
from smdist.dataparallel.tensorflow.forms import with_names_checked
from smdist.dataparallel.tensorflow.library import tf
from smdist.dataparallel.tensorflow.reduce_op import ReduceOp


class StopCallback(keras.callbacks.Callback):  # type: ignore[misc]  # untyped
    """End fit() after the same batch on all ranks, once one of them got SIGTERM.

    SageMaker sends it to all, but each rank hears it in a batch of its own: whoever stopped
    alone would leave the others behind. Every rank needs this callback.

    Args:
        every_batches: How often ranks ask each other, besides each end of an epoch.

    Attributes:
        is_stopped: Whether fit() was ended so; the script then saves, and exits with 143.

    Raises:
        OptionError: every_batches is no positive number; fit() runs in another thread than
            the main one, where Python hears no signals.
    """

    @with_names_checked
    def __init__(self, every_batches: int = 10) -> None:
        super().__init__()
        require(
            isinstance(every_batches, int) and every_batches > 0,
            what=f"every_batches is {every_batches!r}",
            why="ranks ask each other after so many batches",
            mend="Pass a positive number, such as 10",
        )
        self.every_batches = every_batches
        self.is_stopped = False
        self._is_asked = False
        self._batches = 0
        self._before: Any = None  # who heard SIGTERM before

    def on_train_begin(self, logs: Any = None) -> None:  # noqa: ARG002  Keras's
        """Hear SIGTERM from now on."""
        require(
            threading.current_thread() is threading.main_thread(),
            what="StopCallback in fit() outside of the main thread",
            why="Python hears signals in the main thread alone",
            mend="Call fit() there, or leave the callback out",
        )
        self.is_stopped, self._is_asked, self._batches = False, False, 0
        self._before = signal.signal(signal.SIGTERM, self._ask)

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:  # noqa: ARG002  Keras's
        """Ask the others now and then."""
        self._batches += 1
        if self._batches % self.every_batches == 0:
            self._agree()

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:  # noqa: ARG002  Keras's
        """Ask the others, before another epoch begins."""
        if not self.is_stopped:
            self._agree()

    def on_train_end(self, logs: Any = None) -> None:  # noqa: ARG002  Keras's
        """Leave SIGTERM to whoever heard it before."""
        signal.signal(signal.SIGTERM, self._before)

    def _ask(self, *_: Any) -> None:
        self._is_asked = True

    def _agree(self) -> None:
        asked = tf.constant(int(self._is_asked), tf.int32)
        self.is_stopped = bool(collectives.allreduce(asked, op=ReduceOp.MAX))
        if self.is_stopped:
            self.model.stop_training = True
