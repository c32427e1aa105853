# SPDX-License-Identifier: Apache-2.0
"""Clean end of model.fit when the job is stopped or its spot instances are reclaimed."""

from __future__ import annotations

import signal
import threading
from typing import Any

import keras

from sagemaker_dist.errors import require
from smdist.dataparallel.tensorflow import collectives
from smdist.dataparallel.tensorflow.call_forms import with_names_checked
from smdist.dataparallel.tensorflow.op_library import tf
from smdist.dataparallel.tensorflow.reduce_op import ReduceOp


class StopCallback(keras.callbacks.Callback):  # type: ignore[misc]  # untyped
    """End fit() after the same batch on all ranks, once one of them has received SIGTERM.

    SageMaker sends SIGTERM to all ranks, but each rank receives it in another batch. If one rank
    stopped alone, the other ranks would wait for it. Every rank needs this callback.

    Args:
        every_batches: Number of batches between two checks of all ranks; each end of an epoch
            is a check, too.

    Attributes:
        is_stopped: Whether SIGTERM ended fit(); the script then saves, and exits with 143.

    Raises:
        OptionError: every_batches is not a positive number; fit() runs outside of the main
            thread, where Python handles no signals.
    """

    @with_names_checked
    def __init__(self, every_batches: int = 10) -> None:
        super().__init__()
        require(
            isinstance(every_batches, int) and every_batches > 0,
            what=f"every_batches is {every_batches!r}",
            why="ranks ask each other after so many batches",
            hint="Pass a positive number, such as 10",
        )
        self.every_batches = every_batches
        self.is_stopped = False
        self._is_asked = False
        self._batches = 0
        self._before: Any = None  # handler of SIGTERM before fit()

    def on_train_begin(self, logs: Any = None) -> None:  # noqa: ARG002  Keras's
        """Install the handler of SIGTERM."""
        require(
            threading.current_thread() is threading.main_thread(),
            what="StopCallback in fit() outside of the main thread",
            why="Python hears signals in the main thread alone",
            hint="Call fit() there, or leave the callback out",
        )
        self.is_stopped, self._is_asked, self._batches = False, False, 0
        self._before = signal.signal(signal.SIGTERM, self._ask)

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:  # noqa: ARG002  Keras's
        """Check all ranks after every `every_batches` batches."""
        self._batches += 1
        if self._batches % self.every_batches == 0:
            self._agree()

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:  # noqa: ARG002  Keras's
        """Check all ranks before another epoch begins."""
        if not self.is_stopped:
            self._agree()

    def on_train_end(self, logs: Any = None) -> None:  # noqa: ARG002  Keras's
        """Restore the previous handler of SIGTERM."""
        signal.signal(signal.SIGTERM, self._before)

    def _ask(self, *_: Any) -> None:
        self._is_asked = True

    def _agree(self) -> None:
        asked = tf.constant(int(self._is_asked), tf.int32)
        self.is_stopped = bool(collectives.allreduce(asked, op=ReduceOp.MAX))
        if self.is_stopped:
            self.model.stop_training = True
