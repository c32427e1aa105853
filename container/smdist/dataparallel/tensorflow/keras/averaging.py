# SPDX-License-Identifier: Apache-2.0
"""Callbacks of fit() that meet the other ranks: first values, metrics, checkpoints."""

from __future__ import annotations

from numbers import Real
from typing import Any, Final

import keras

from smdist.dataparallel.tensorflow import omissions, world
from smdist.dataparallel.tensorflow.agreement import mark_of
from smdist.dataparallel.tensorflow.forms import check_devices, with_names_checked
from smdist.dataparallel.tensorflow.keras.optimizer import is_distributed
from smdist.dataparallel.tensorflow.keras.telling import TellingCallback
from smdist.dataparallel.tensorflow.library import tf
from smdist.dataparallel.tensorflow.omissions import BROADCAST, WRAP
from smdist.dataparallel.tensorflow.reduce_op import ReduceOp
from smdist.dataparallel.tensorflow.reducing import Reduction, all_reduce
from smdist.dataparallel.tensorflow.variables import broadcast_variables, check_root

_MOST_NUMBERS: Final = 65536  # of each weight, to compare
_NEARLY: Final = 1e-4


class BroadcastGlobalVariablesCallback(TellingCallback):
    """Give all ranks the model and optimizer of one, once, when training begins.

    A model that its first batch builds is broadcast after that batch. States of random
    numbers stay each rank's own, so that dropout differs between ranks. It also reports each
    step for the line of progress that rank 0 prints.

    Raises:
        OptionError: There is no rank `root_rank`.
    """

    @with_names_checked
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
        if self._steps > 1 and world.size() > 1 and world.rank() == 0:
            self._look()

    def _look(self) -> None:
        """The first batches have traced what reduces gradients, if anything does."""
        optimizer = self.model.optimizer
        if not is_distributed(optimizer) and not omissions.are_gradients_reduced():
            name = type(optimizer).__name__
            omissions.warn(f"no gradients are averaged: {name} takes its rank's own. {WRAP}")

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

    Put it before ReduceLROnPlateau, EarlyStopping, TensorBoard and checkpoints. After its
    first epoch it also compares weights, and rank 0 says so if they differ.
    """

    @with_names_checked
    def __init__(self, device: str = "") -> None:
        super().__init__()
        check_devices(device=device)
        self._is_compared = False

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:  # noqa: ARG002  Keras's
        """Replace the numbers in `logs`, in place."""
        names = sorted(name for name, value in (logs or {}).items() if _is_number(value))
        if not names or world.size() == 1:
            return
        values = tf.constant([float(logs[name]) for name in names], tf.float64)
        [means] = all_reduce([values], Reduction(), mark_of("\n".join(names)))
        logs.update(zip(names, means.numpy().tolist(), strict=True))
        if not self._is_compared:
            self._is_compared = True
            _compare(self.model.trainable_weights)


class ModelCheckpoint(keras.callbacks.ModelCheckpoint):  # type: ignore[misc]  # untyped
    """Keras's ModelCheckpoint on rank 0; the other ranks write nothing.

    What it monitors is rank 0's own, unless a MetricAverageCallback stands before it.
    """

    def _save_model(self, *arguments: Any, **named: Any) -> None:
        if world.rank() == 0:
            super()._save_model(*arguments, **named)


class BestModelCheckpoint(ModelCheckpoint):
    """Keep the best whole model only, written by rank 0."""

    @with_names_checked
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


def _compare(weights: list[Any]) -> None:
    """Say so if ranks have trained apart."""
    mine = _fingerprint(weights)
    [extremes] = all_reduce([tf.stack([mine, -mine])], Reduction(op=ReduceOp.MIN))
    low, high = float(extremes[0]), -float(extremes[1])
    if high - low > _NEARLY and world.rank() == 0:
        omissions.warn(
            "weights differ between ranks after an epoch: first weights, or gradients, are each"
            f" rank's own. {BROADCAST}. {WRAP}"
        )


def _fingerprint(weights: list[Any]) -> Any:
    """A number of about 1 at most, float64 [], that other weights are unlikely to have."""
    total = squares = tf.zeros([], tf.float64)
    for weight in weights:
        part = tf.cast(tf.reshape(tf.convert_to_tensor(weight), [-1])[:_MOST_NUMBERS], tf.float64)
        factors = tf.cos(tf.cast(tf.range(tf.size(part)), tf.float64))
        total, squares = total + tf.reduce_sum(part * factors), squares + tf.reduce_sum(part**2)
    return total / tf.maximum(tf.sqrt(squares), 1e-30)


def _is_number(value: Any) -> bool:
    return isinstance(value, Real) or getattr(value, "shape", None) == ()
