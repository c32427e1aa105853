# SPDX-License-Identifier: Apache-2.0
"""Callback that ends model.fit on all ranks after the same batch when the job is stopped."""

from __future__ import annotations

import signal
import threading
from typing import Any

import keras

from sagemaker_dist.errors import require
from smdist.dataparallel.tensorflow import collectives
from smdist.dataparallel.tensorflow.call_forms import suggest_argument_names
from smdist.dataparallel.tensorflow.op_library import tf
from smdist.dataparallel.tensorflow.reduce_op import ReduceOp


class StopCallback(keras.callbacks.Callback):  # type: ignore[misc]  # untyped
    """Callback that ends fit() after the same batch on all ranks, once any has received SIGTERM.

    SageMaker sends SIGTERM to all ranks, but each rank may receive it in a different batch. If
    one rank stopped alone, the other ranks would wait for it. All ranks need this callback.

    Args:
        every_batches: Number of batches between two checks, in which each rank learns whether
            any rank has received SIGTERM; the end of each epoch is a check, too.

    Attributes:
        is_stopped: True if SIGTERM has ended fit(); the script should then save its state and
            exit with code 143.

    Raises:
        OptionError: every_batches is not a positive integer, or fit() runs outside of the main
            thread, where Python handles no signals.
    """

    @suggest_argument_names
    def __init__(self, every_batches: int = 10) -> None:
        super().__init__()
        require(
            isinstance(every_batches, int) and every_batches > 0,
            what=f"every_batches is {every_batches!r}",
            why="it must be the number of batches between two checks of all ranks",
            hint="Pass a positive integer, such as 10",
            about="every_batches",
        )
        self.every_batches = every_batches
        self.is_stopped = False
        self._is_requested = False
        self._batches = 0
        self._before: Any = None  # handler of SIGTERM before fit()

    def on_train_begin(self, logs: Any = None) -> None:  # noqa: ARG002  Keras's
        """Install a handler of SIGTERM, and start counting batches."""
        require(
            threading.current_thread() is threading.main_thread(),
            what="fit() with StopCallback was called outside of the main thread",
            why="Python handles signals only in the main thread",
            hint="Call fit() in the main thread, or leave the callback out",
            about="StopCallback",
        )
        self.is_stopped, self._is_requested, self._batches = False, False, 0
        self._before = signal.signal(signal.SIGTERM, self._request_stop)

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:  # noqa: ARG002  Keras's
        """Check after every `every_batches` batches whether any rank has received SIGTERM."""
        self._batches += 1
        if self._batches % self.every_batches == 0:
            self._check_all_ranks()

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:  # noqa: ARG002  Keras's
        """Check at the end of each epoch whether any rank has received SIGTERM."""
        if not self.is_stopped:
            self._check_all_ranks()

    def on_train_end(self, logs: Any = None) -> None:  # noqa: ARG002  Keras's
        """Restore the previous handler of SIGTERM."""
        signal.signal(signal.SIGTERM, self._before)

    def _request_stop(self, *_: Any) -> None:
        self._is_requested = True

    def _check_all_ranks(self) -> None:
        requested = tf.constant(int(self._is_requested), tf.int32)
        self.is_stopped = bool(collectives.allreduce(requested, op=ReduceOp.MAX))
        if self.is_stopped:
            self.model.stop_training = True
