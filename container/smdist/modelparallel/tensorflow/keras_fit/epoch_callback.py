# SPDX-License-Identifier: Apache-2.0
"""Callbacks of fit(): the number of finished epochs, and callbacks that are refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import keras

from sagemaker_dist.errors import OptionError

_REFUSED: Final = {
    "BackupAndRestore": "each rank would write and delete the same files at the same time",
    "SwapEMAWeights": "it swaps all weights of the model, and this rank has those of its stages",
}
_HINT: Final = (
    "Use keras.callbacks.ModelCheckpoint, and model.load_checkpoint(path) before fit(), which"
    " returns initial_epoch"
)


class EpochCallback(keras.callbacks.Callback):  # type: ignore[misc]  # untyped
    """Callback that tells the model how many epochs are finished, before others save it.

    Args:
        begin: Function that takes the number of an epoch that begins, from 0.
        count: Function that takes the number of finished epochs.
    """

    def __init__(self, begin: Callable[[int], None], count: Callable[[int], None]) -> None:
        super().__init__()
        self._begin, self._count = begin, count

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:  # noqa: ARG002  Keras's
        """Begin an epoch."""
        self._begin(epoch)

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:  # noqa: ARG002  Keras's
        """Count an epoch."""
        self._count(epoch + 1)


def with_epochs(callbacks: Any, counter: EpochCallback) -> Any:
    """Return the callbacks of fit() with an EpochCallback in front.

    Args:
        callbacks: Argument of fit(): a callback, a list of callbacks, a CallbackList or None.
        counter: Callback that others run after.

    Raises:
        OptionError: A callback does not work with a split model.
    """
    if isinstance(callbacks, keras.callbacks.CallbackList):
        _refuse(callbacks.callbacks)
        callbacks.callbacks.insert(0, counter)
        return callbacks
    given = [] if callbacks is None else callbacks
    given = list(given) if isinstance(given, list | tuple) else [given]
    _refuse(given)
    return [counter, *given]


def _refuse(callbacks: list[Any]) -> None:
    for each in callbacks:
        for name, why in _REFUSED.items():
            if isinstance(each, getattr(keras.callbacks, name, ())):
                raise OptionError(
                    f"fit() got the callback {name}", why, _HINT, about="callbacks",
                    kind="unsupported",
                )  # fmt: skip
