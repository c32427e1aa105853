# SPDX-License-Identifier: Apache-2.0
"""Callbacks that set the learning rate by epoch, with Horovod's names and meaning.

A warm-up raises the learning rate from initial_lr / number of ranks to initial_lr. Example with
4 ranks and a warm-up of 2 epochs:

    initial_lr               ________
                    .../''''
    initial_lr / 4  '''
                    0     1     2     epochs
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras

from sagemaker_dist.errors import require
from smdist.dataparallel.tensorflow import basics
from smdist.dataparallel.tensorflow.call_forms import suggest_argument_names
from smdist.dataparallel.tensorflow.keras.clone_optimizer import innermost
from smdist.dataparallel.tensorflow.op_library import tf


class LearningRateScheduleCallback(keras.callbacks.Callback):  # type: ignore[misc]  # untyped
    """Callback that sets the learning rate to initial_lr * multiplier(epoch).

    It does so in the epochs from `start_epoch` to before `end_epoch`.

    Args:
        initial_lr: The learning rate that the multiplier multiplies.
        multiplier: A factor, or a function of the epoch; without `staircase` the epoch has a
            fraction, such as 1.5 in the middle of epoch 1.
        start_epoch: First epoch whose rate is set.
        end_epoch: First epoch whose rate is no longer set; None for no end.
        staircase: True to set the rate once per epoch, False to set it at every batch.
        momentum_correction: True to scale the accumulated momentum by the change of the rate.
            Horovod instead changes the optimizer's momentum coefficient for one batch, with the
            same effect; a compiled step of Keras 3 would ignore this change.
        steps_per_epoch: Batches of an epoch; by default the number that fit() knows.

    Raises:
        OptionError: The learning rate is a schedule of Keras, or the number of batches of an
            epoch is not known.
    """

    @suggest_argument_names
    def __init__(
        self,
        initial_lr: float,
        multiplier: float | Callable[[float], float],
        start_epoch: int = 0,
        end_epoch: int | None = None,
        staircase: bool = True,
        *,
        momentum_correction: bool = True,
        steps_per_epoch: int | None = None,
    ) -> None:
        super().__init__()
        self.initial_lr = float(initial_lr)
        self.start_epoch, self.end_epoch = start_epoch, end_epoch
        self.momentum_correction = momentum_correction
        self.steps_per_epoch = steps_per_epoch
        if callable(multiplier):
            self.multiplier, self.staircase = multiplier, staircase
        else:
            self.multiplier, self.staircase = _constant(multiplier), True
        self._epoch = 0

    def on_train_begin(self, logs: Any = None) -> None:  # noqa: ARG002  Keras's
        """Store the number of batches of an epoch, if the rate changes at every batch."""
        if not self.staircase:
            self.steps_per_epoch = self.steps_per_epoch or self.params.get("steps")
            require(
                bool(self.steps_per_epoch),
                what="the number of batches of an epoch is not known",
                why="fit() cannot know the length of its data",
                hint="Pass steps_per_epoch to the callback",
                about="steps_per_epoch",
            )

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:  # noqa: ARG002  Keras's
        """Store the number of the epoch that begins."""
        self._epoch = epoch

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:  # noqa: ARG002  Keras's
        """Set the learning rate: with `staircase` at an epoch's first batch, else at every one."""
        is_over = self.end_epoch is not None and self._epoch >= self.end_epoch
        if self._epoch < self.start_epoch or is_over:
            return
        if self.staircase and batch == 0:
            self._adjust(self._epoch)
        elif not self.staircase:
            assert self.steps_per_epoch
            self._adjust(self._epoch + batch / self.steps_per_epoch)

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:  # noqa: ARG002  Keras's
        """Add the learning rate to `logs` as "lr", for Keras's history."""
        if logs is not None:
            logs["lr"] = float(self.model.optimizer.learning_rate)

    def _adjust(self, epoch: float) -> None:
        optimizer = innermost(self.model.optimizer)
        _check_rate(optimizer)
        old, new = float(optimizer.learning_rate), self.initial_lr * self.multiplier(epoch)
        if new == old:
            return
        optimizer.learning_rate = new
        if self.momentum_correction and old > 0:
            for velocity in _velocities(optimizer):
                velocity.assign(velocity * (new / old))


class LearningRateWarmupCallback(LearningRateScheduleCallback):
    """Callback that raises the learning rate from initial_lr / size() to initial_lr.

    The rate rises linearly, at every batch. Source: Goyal et al., "Accurate, Large Minibatch
    SGD", 2017.

    Args:
        initial_lr: The rate after the warm-up: usually a single process's rate times size().
        warmup_epochs: Number of epochs of the warm-up.
        momentum_correction: True to scale the accumulated momentum by the change of the rate.
        steps_per_epoch: Batches of an epoch; by default the number that fit() knows.
        verbose: 1 to print a line on rank 0 at the end of the warm-up.

    Raises:
        OptionError: warmup_epochs is not positive.
    """

    @suggest_argument_names
    def __init__(
        self,
        initial_lr: float,
        warmup_epochs: int = 5,
        momentum_correction: bool = True,
        steps_per_epoch: int | None = None,
        verbose: int = 0,
    ) -> None:
        require(
            warmup_epochs > 0,
            what=f"warmup_epochs is {warmup_epochs!r}",
            why="the learning rate rises over this number of epochs",
            hint="Pass a positive number, or leave the callback out",
            about="warmup_epochs",
        )
        self.verbose = verbose
        super().__init__(
            initial_lr,
            lambda epoch: warmup_factor(
                epoch + 1 / (self.steps_per_epoch or 1), basics.size(), warmup_epochs
            ),
            end_epoch=warmup_epochs,
            staircase=False,
            momentum_correction=momentum_correction,
            steps_per_epoch=steps_per_epoch,
        )

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Add the learning rate to `logs` as "lr"; print a line at the end of the warm-up."""
        super().on_epoch_end(epoch, logs)
        if self.end_epoch is not None and epoch == self.end_epoch - 1 and self.verbose > 0:
            rate = float(self.model.optimizer.learning_rate)
            if basics.rank() == 0:
                tf.print(f"Epoch {epoch + 1}: the learning rate is {rate:g}.")


def warmup_factor(epoch: float, size: int, warmup_epochs: float) -> float:
    """Return the factor of initial_lr: it rises linearly from 1 / size to 1 at `warmup_epochs`."""
    return (epoch * (size - 1) / warmup_epochs + 1) / size


def _constant(value: float) -> Callable[[float], float]:
    return lambda _: value


def _check_rate(optimizer: Any) -> None:
    schedule = getattr(optimizer, "_learning_rate", None)
    require(
        not isinstance(schedule, keras.optimizers.schedules.LearningRateSchedule)
        and (not callable(schedule) or hasattr(schedule, "assign")),
        what=f"the learning rate of the optimizer is {schedule!r}",
        why="a schedule changes by itself, and this callback needs a number that it can set",
        hint="Give the optimizer a number as learning_rate, or leave the callback out",
        about="learning_rate",
    )


def _velocities(optimizer: Any) -> list[Any]:
    """Return the variables with the accumulated momentum of SGD or RMSprop.

    Return [] for an optimizer without momentum.
    """
    if not getattr(optimizer, "momentum", 0):
        return []
    found = getattr(optimizer, "momentums", None) or getattr(optimizer, "_momentums", None) or []
    return [each for each in found if each is not None]
