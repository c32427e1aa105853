# SPDX-License-Identifier: Apache-2.0
"""Callbacks for model.fit that broadcast initial values, average metrics, and save on rank 0."""

from __future__ import annotations

from numbers import Real
from typing import Any, Final

import keras

from sagemaker_dist.errors import OptionError
from smdist.dataparallel.tensorflow import basics, setup_hints
from smdist.dataparallel.tensorflow.broadcast_objects import allgather_object
from smdist.dataparallel.tensorflow.call_forms import check_devices, suggest_argument_names
from smdist.dataparallel.tensorflow.fused_allreduce import ReduceOptions, all_reduce
from smdist.dataparallel.tensorflow.keras.progress_callback import ProgressCallback
from smdist.dataparallel.tensorflow.keras.reducing_mixins import averages_over_world, is_distributed
from smdist.dataparallel.tensorflow.op_library import tf
from smdist.dataparallel.tensorflow.reduce_op import ReduceOp
from smdist.dataparallel.tensorflow.setup_hints import BROADCAST, WRAP
from smdist.dataparallel.tensorflow.variable_broadcast import broadcast_variables, check_root
from smdist.dataparallel.tensorflow.variable_signature import checksum_of

_MAX_NUMBERS: Final = 65536  # elements of each weight that are compared between ranks
_TOLERANCE: Final = 1e-4
_SHOWN: Final = 4  # largest number of ranks that an error describes


class BroadcastGlobalVariablesCallback(ProgressCallback):
    """Callback that sends the model and optimizer of one rank to all ranks when fit() begins.

    A model that is built in its first batch is sent after that batch. Seed generator
    states are not sent, so that dropout differs between ranks. The callback also reports
    each step for the progress line that rank 0 prints.

    Args:
        root_rank: The rank whose values are sent.
        device: Horovod's argument; must be empty.

    Raises:
        OptionError: The rank `root_rank` does not exist, or a device is given. When fit() begins:
            ranks have different numbers of batches; raised on every rank.
    """

    @suggest_argument_names
    def __init__(self, root_rank: int = 0, device: str = "") -> None:
        super().__init__()
        check_devices(device=device)
        check_root(root_rank)
        self.root_rank = root_rank
        # (model, optimizer)
        self._was_broadcast: tuple[Any, Any] = (None, None)

    def on_train_begin(self, logs: Any = None) -> None:
        """Compare the numbers of batches; broadcast model and optimizer, if the model is built."""
        super().on_train_begin(logs)
        self._check_steps()
        if self.model.built:
            self._broadcast()

    def _check_steps(self) -> None:
        """Check that ranks that average gradients have as many batches, where Keras knows it."""
        if not averages_over_world(self.model.optimizer):
            return
        first: dict[int, int] = {}  # lowest rank of each number
        for rank, steps in enumerate(allgather_object(self.params.get("steps"))):
            if steps is not None:
                first.setdefault(steps, rank)
        if len(first) > 1:
            found = [f"rank {rank} has {steps}" for steps, rank in list(first.items())[:_SHOWN]]
            raise OptionError(
                "ranks have different numbers of batches in an epoch",
                "gradients of each batch are averaged over all ranks, and " + ", ".join(found),
                "Give every rank as many batches: divide the samples into equal parts, use"
                " dataset.take(n), or pass all ranks the same steps_per_epoch",
                about="data",
                kind="difference",
            )

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Broadcast a model that the first batch has built, and report the step."""
        self._broadcast()
        super().on_train_batch_end(batch, logs)
        if self._steps > 1 and basics.size() > 1 and basics.rank() == 0:
            self._warn_if_not_reduced()

    def _warn_if_not_reduced(self) -> None:
        """Print a warning if no gradients were reduced in the first batches."""
        optimizer = self.model.optimizer
        if not is_distributed(optimizer) and not setup_hints.are_gradients_reduced():
            name = type(optimizer).__name__
            setup_hints.warn(
                f"no gradients are averaged: {name} applies only the gradients of its own rank."
                f" {WRAP}"
            )

    def _broadcast(self) -> None:
        optimizer = self.model.optimizer
        if self._was_broadcast[0] is self.model and self._was_broadcast[1] is optimizer:
            return
        if optimizer is not None and not optimizer.built:
            optimizer.build(self.model.trainable_variables)
        own = [] if optimizer is None else list(optimizer.variables)
        broadcast_variables([*self.model.weights, *own], self.root_rank)
        self._was_broadcast = (self.model, optimizer)


class MetricAverageCallback(keras.callbacks.Callback):  # type: ignore[misc]  # untyped
    """Callback that averages metrics over all ranks at the end of each epoch.

    Later callbacks in the list see the averages, so put it before ReduceLROnPlateau,
    EarlyStopping, TensorBoard and checkpoints. After its first epoch it also compares the
    weights of all ranks, and rank 0 prints a warning if they differ.

    Args:
        device: Horovod's argument; must be empty.
    """

    @suggest_argument_names
    def __init__(self, device: str = "") -> None:
        super().__init__()
        check_devices(device=device)
        self._is_compared = False

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:  # noqa: ARG002  Keras's
        """Replace the numbers in `logs` by their averages over all ranks."""
        names = sorted(name for name, value in (logs or {}).items() if _is_number(value))
        if not names or basics.size() == 1:
            return
        values = tf.constant([float(logs[name]) for name in names], tf.float64)
        [means] = all_reduce([values], ReduceOptions(), checksum_of("\n".join(names)))
        logs.update(zip(names, means.numpy().tolist(), strict=True))
        if not self._is_compared:
            self._is_compared = True
            _compare(self.model.trainable_weights)


class ModelCheckpoint(keras.callbacks.ModelCheckpoint):  # type: ignore[misc]  # untyped
    """Keras's ModelCheckpoint, which writes files only on rank 0.

    It monitors rank 0's own metrics, unless a MetricAverageCallback is before it in the list.
    """

    def _save_model(self, *arguments: Any, **named: Any) -> None:
        if basics.rank() == 0:
            super()._save_model(*arguments, **named)


class BestModelCheckpoint(ModelCheckpoint):
    """ModelCheckpoint that saves the whole model on rank 0, only when the metric has improved."""

    @suggest_argument_names
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
    """Compare the weights of all ranks; rank 0 prints a warning if they differ."""
    mine = _fingerprint(weights)
    [extremes] = all_reduce([tf.stack([mine, -mine])], ReduceOptions(op=ReduceOp.MIN))
    low, high = float(extremes[0]), -float(extremes[1])
    if high - low > _TOLERANCE and basics.rank() == 0:
        setup_hints.warn(
            "weights differ between ranks after an epoch: the initial weights were not broadcast,"
            f" or the gradients were not averaged. {BROADCAST}. {WRAP}"
        )


def _fingerprint(weights: list[Any]) -> Any:
    """Return a float64 scalar that ranks compare to find out whether their weights are equal.

    It depends on the first 65,536 elements of each weight and is usually between -1 and 1, because
    it is divided by the norm of these elements.
    """
    total = squares = tf.zeros([], tf.float64)
    for weight in weights:
        part = tf.cast(tf.reshape(tf.convert_to_tensor(weight), [-1])[:_MAX_NUMBERS], tf.float64)
        factors = tf.cos(tf.cast(tf.range(tf.size(part)), tf.float64))
        total, squares = total + tf.reduce_sum(part * factors), squares + tf.reduce_sum(part**2)
    return total / tf.maximum(tf.sqrt(squares), 1e-30)


def _is_number(value: Any) -> bool:
    return isinstance(value, Real) or getattr(value, "shape", None) == ()
