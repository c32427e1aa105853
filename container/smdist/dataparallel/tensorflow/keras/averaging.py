# SPDX-License-Identifier: Apache-2.0
"""Callbacks of fit() that meet the other ranks: first values, metrics, checkpoints."""

from __future__ import annotations

from numbers import Real
from typing import Any

import keras

from smdist.dataparallel.tensorflow import world
from smdist.dataparallel.tensorflow.agreement import mark_of
from smdist.dataparallel.tensorflow.forms import check_devices
from smdist.dataparallel.tensorflow.keras.telling import TellingCallback
from smdist.dataparallel.tensorflow.library import tf
from smdist.dataparallel.tensorflow.reducing import Reduction, all_reduce
from smdist.dataparallel.tensorflow.variables import broadcast_variables, check_root


class BroadcastGlobalVariablesCallback(TellingCallback):
    """Give all ranks the model and optimizer of one, once, when training begins.

    A model that its first batch builds is broadcast after that batch. States of random
    numbers stay each rank's own, so that dropout differs between ranks. It also reports each
    step for the line of progress that rank 0 prints.

    Raises:
        OptionError: There is no rank `root_rank`.
    """

    def __init__(self, root_rank: int = 0, device: str = "") -> None:
        super().__init__()
        check_devices(device=device)
        check_root(root_rank)
        self.root_rank = root_rank
        self._given: tuple[Any, Any] = (None, None)  # the model and the optimizer that have it

    def on_train_begin(self, logs: Any = None) -> None:
        """Broadcast what is there."""
        super().on_train_begin(logs)
        if self.model.built:
            self._broadcast()

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Broadcast what the first batch has made."""
        self._broadcast()
        super().on_train_batch_end(batch, logs)

    def _broadcast(self) -> None:
        optimizer = self.model.optimizer
        if self._given[0] is self.model and self._given[1] is optimizer:
            return
        if optimizer is not None and not optimizer.built:
            optimizer.build(self.model.trainable_variables)
        own = [] if optimizer is None else list(optimizer.variables)
        broadcast_variables([*self.model.weights, *own], self.root_rank)
        self._given = (self.model, optimizer)


class MetricAverageCallback(keras.callbacks.Callback):  # type: ignore[misc]  # untyped
    """Average metrics over ranks at the end of each epoch, for the callbacks behind this one.

    Put it before ReduceLROnPlateau, EarlyStopping, TensorBoard and checkpoints.
    """

    def __init__(self, device: str = "") -> None:
        super().__init__()
        check_devices(device=device)

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:  # noqa: ARG002  Keras's
        """Replace the numbers in `logs`, in place."""
        names = sorted(name for name, value in (logs or {}).items() if _is_number(value))
        if not names or world.size() == 1:
            return
        values = tf.constant([float(logs[name]) for name in names], tf.float64)
        [means] = all_reduce([values], Reduction(), mark_of("\n".join(names)))
        logs.update(zip(names, means.numpy().tolist(), strict=True))


class ModelCheckpoint(keras.callbacks.ModelCheckpoint):  # type: ignore[misc]  # untyped
    """Keras's ModelCheckpoint on rank 0; the other ranks write nothing.

    What it monitors is rank 0's own, unless a MetricAverageCallback stands before it.
    """

    def _save_model(self, *arguments: Any, **named: Any) -> None:
        if world.rank() == 0:
            super()._save_model(*arguments, **named)


class BestModelCheckpoint(ModelCheckpoint):
    """Keep the best whole model only, written by rank 0."""

    def __init__(
        self,
        filepath: Any,
        monitor: str = "val_loss",
        verbose: int = 0,
        mode: str = "auto",
        save_freq: Any = "epoch",
    ) -> None:
        super().__init__(
            filepath,
            monitor=monitor,
            verbose=verbose,
            mode=mode,
            save_freq=save_freq,
            save_best_only=True,
            save_weights_only=False,
        )


def _is_number(value: Any) -> bool:
    return isinstance(value, Real) or getattr(value, "shape", None) == ()
