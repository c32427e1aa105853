# SPDX-License-Identifier: Apache-2.0
"""Learning rates that follow the epoch, in Horovod's names and meaning.

warm-up from initial_lr / size to initial_lr, here size 4 over 2 epochs:

initial_lr         ________
          .../''''
/ 4    '''
       0     1     2  epochs
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras

from sagemaker_dist.errors import require
from smdist.dataparallel.tensorflow import world
from smdist.dataparallel.tensorflow.forms import with_names_checked
from smdist.dataparallel.tensorflow.keras.twin import innermost
from smdist.dataparallel.tensorflow.library import tf


class LearningRateScheduleCallback(keras.callbacks.Callback):  # type: ignore[misc]  # untyped
    """Set the learning rate to initial_lr * multiplier(epoch) while start <= epoch < end.

    Args:
        multiplier: A factor, or a function of the epoch, which has fractions unless
            `staircase`.
        end_epoch: None: to the end.
        staircase: Once an epoch; else at every batch.
        momentum_correction: Scale accumulated momentum by what the learning rate is scaled
            by: the same as Horovod's change of the coefficient for that one batch, which
            a compiled step of Keras 3 would not see.
        steps_per_epoch: Batches of an epoch; default what fit() knows.

    Raises:
        OptionError: The learning rate is a schedule of Keras, or the batches of an epoch
            are not known.
    """

    @with_names_checked
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
        """Find out how many batches an epoch has."""
        if not self.staircase:
            self.steps_per_epoch = self.steps_per_epoch or self.params.get("steps")
            require(
                bool(self.steps_per_epoch),
                what="steps_per_epoch is not known",
                why="fit() does not know how long its data is",
                mend="Pass steps_per_epoch to the callback",
            )

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:  # noqa: ARG002  Keras's
        """Remember it."""
        self._epoch = epoch

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:  # noqa: ARG002  Keras's
        """Set the rate, if it is time."""
        is_over = self.end_epoch is not None and self._epoch >= self.end_epoch
        if self._epoch < self.start_epoch or is_over:
            return
        if self.staircase and batch == 0:
            self._adjust(self._epoch)
        elif not self.staircase:
            assert self.steps_per_epoch
            self._adjust(self._epoch + batch / self.steps_per_epoch)

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:  # noqa: ARG002  Keras's
        """Leave the rate in the history."""
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
    """Raise the learning rate from initial_lr / size to initial_lr, batch by batch.

    After Goyal et al., "Accurate, Large Minibatch SGD", 2017.

    Args:
        initial_lr: The rate after the warm-up: usually one process's times size().
        verbose: 1: rank 0 says when it is over.
    """

    @with_names_checked
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
            why="the rate rises over that many epochs",
            mend="Pass a positive number, or leave the callback out",
        )
        self.verbose = verbose
        super().__init__(
            initial_lr,
            lambda epoch: warmup_factor(
                epoch + 1 / (self.steps_per_epoch or 1), world.size(), warmup_epochs
            ),
            end_epoch=warmup_epochs,
            staircase=False,
            momentum_correction=momentum_correction,
            steps_per_epoch=steps_per_epoch,
        )

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Leave the rate in the history; say when the warm-up is over."""
        super().on_epoch_end(epoch, logs)
        if self.end_epoch is not None and epoch == self.end_epoch - 1 and self.verbose > 0:
            rate = float(self.model.optimizer.learning_rate)
            if world.rank() == 0:
                tf.print(f"Epoch {epoch + 1}: the learning rate is {rate:g}.")


def warmup_factor(epoch: float, size: int, warmup_epochs: float) -> float:
    """1 / size at epoch 0, rising in a line to 1 at `warmup_epochs`."""
    return (epoch * (size - 1) / warmup_epochs + 1) / size


def _constant(value: float) -> Callable[[float], float]:
    return lambda _: value


def _check_rate(optimizer: Any) -> None:
    schedule = getattr(optimizer, "_learning_rate", None)
    require(
        not isinstance(schedule, keras.optimizers.schedules.LearningRateSchedule)
        and (not callable(schedule) or hasattr(schedule, "assign")),
        what=f"the learning rate is {schedule!r}",
        why="it sets itself, and this callback would set it as well",
        mend="Give the optimizer a number, or leave the callback out",
    )


def _velocities(optimizer: Any) -> list[Any]:
    """What SGD and RMSprop accumulate with their `momentum`; it contains the learning rate."""
    if not getattr(optimizer, "momentum", 0):
        return []
    found = getattr(optimizer, "momentums", None) or getattr(optimizer, "_momentums", None) or []
    return [each for each in found if each is not None]
