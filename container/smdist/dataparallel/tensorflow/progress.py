# SPDX-License-Identifier: Apache-2.0
"""Values that a script adds to the progress line, which rank 0 prints about every ten seconds.

    from smdist.dataparallel.tensorflow import report

    report(loss=loss, step=step)

model.fit needs no call: BroadcastGlobalVariablesCallback reports its steps.
"""

from __future__ import annotations

import atexit
import os
from contextlib import suppress
from functools import cache
from numbers import Integral
from typing import Any

from sagemaker_dist.errors import require
from smdist.dataparallel import progress_line
from smdist.dataparallel.report_checks import check_name, check_number, refusal
from smdist.dataparallel.tensorflow import basics
from smdist.dataparallel.tensorflow.op_library import as_written, compiled, tf


class FitProgress(progress_line.ProgressLine):
    """Progress of one training with TensorFlow; see smdist.dataparallel.progress_line."""

    def kept(self, value: Any) -> Any:
        """Return a tensor unchanged, because its number may not be ready yet, or a plain number."""
        return value if tf.is_tensor(value) else super().kept(value)

    def number(self, value: Any) -> int | float | None:
        """Return the number in a tensor, or None if it cannot be read because its step is over."""
        if not tf.is_tensor(value):
            return super().number(value)
        with suppress(Exception):  # an error of the tensor's step, which the script gets, too
            plain = value.numpy().item()
            return int(plain) if isinstance(plain, Integral) else float(plain)
        return None


_current: list[FitProgress] = []  # rank 0's progress, once something was reported


@as_written
def report(**values: Any) -> None:
    """Put values such as `loss=loss` on the next progress line; `step=` makes rates known.

    The call is cheap: make it at every step, on every rank, outside of a tf.function. Only rank 0
    keeps the values, the latest of each name, and reads tensors when it prints.

    Args:
        values: A number or a tensor with one element for each name; `step` is a growing number.

    Raises:
        OptionError: A value is neither, or its name is not allowed on the line; the call is in
            a tf.function, or before init().
    """
    require(
        tf.executing_eagerly(),
        what="report() inside a tf.function",
        why="it would be called once, when the function is traced",
        hint="Return the loss from the function and report it there",
    )
    for name, value in values.items():
        _check(name, value)
    if basics.rank() != 0:
        return
    if not _current:
        _current.append(FitProgress(compiled().activity, counts=False))
        _see_to_the_end()
    _current[0].report(values)


def finish() -> None:
    """Print the last line; a later report() begins a new progress."""
    while _current:
        _current.pop().flush()


@cache
def _see_to_the_end() -> None:
    atexit.register(_finish_process, os.getpid())


def _finish_process(registered: int) -> None:
    if os.getpid() == registered:
        finish()


def _check(name: str, value: Any) -> None:
    if check_name(name, value):
        return
    if not tf.is_tensor(value):
        check_number(name, value)
        return
    is_number = value.dtype.is_floating or value.dtype.is_integer
    if not is_number or value.shape.num_elements() != 1:
        shown = f"a tensor of shape {value.shape} and {value.dtype.name}"
        raise refusal(
            name, shown, "the line has one real number for it", "Pass its tf.reduce_mean()"
        )
