# SPDX-License-Identifier: Apache-2.0
"""Function report(), which adds values to the progress line that rank 0 prints.

    from smdist.dataparallel.tensorflow import report

    report(loss=loss, step=step)

The line is printed about every ten seconds. With model.fit no call is needed, because
BroadcastGlobalVariablesCallback reports the steps.
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
from smdist.dataparallel.tensorflow.op_library import compiled, tf, without_autograph


class FitProgress(progress_line.ProgressLine):
    """Progress lines of one TensorFlow training.

    Reported tensors are read only when a line is printed. The base class `ProgressLine` describes
    the arguments.
    """

    def kept(self, value: Any) -> Any:
        """Return the object to store for a reported value: the tensor itself, or a number.

        A stored tensor is read later, because its computation may not have ended.
        """
        return value if tf.is_tensor(value) else super().kept(value)

    def number(self, value: Any) -> int | float | None:
        """Return the number to print for a stored value; None if a tensor cannot be read."""
        if not tf.is_tensor(value):
            return super().number(value)
        with suppress(Exception):  # an error of the step that computed the tensor
            plain = value.numpy().item()
            return int(plain) if isinstance(plain, Integral) else float(plain)
        return None


_current: list[FitProgress] = []  # rank 0's progress, once something was reported


@without_autograph
def report(**values: Any) -> None:
    """Add values such as `loss=loss` to the next progress line.

    If `step=` is passed, the line also shows rates such as steps per second.

    Call it on every rank at every step, outside of a tf.function: it is cheap. Rank 0 stores the
    latest value of each name and reads tensors only when it prints; the other ranks ignore the
    values.

    Args:
        values: A number, or a tensor with one element, for each name; `step` must increase.

    Raises:
        OptionError: A value is not a number or such a tensor, or a name is not allowed on the
            line. Also raised in a tf.function and before init().
    """
    require(
        tf.executing_eagerly(),
        what="report() was called inside a tf.function",
        why="it would run only once, when the function is traced",
        hint="Return the value from the tf.function, and call report() outside of it",
        about="report",
        kind="traced",
    )
    for name, value in values.items():
        _check(name, value)
    if basics.rank() != 0:
        return
    if not _current:
        _current.append(FitProgress(compiled().activity, counts=False))
        _register_exit_handler()
    _current[0].report(values)


def finish() -> None:
    """Print the last progress line; the next report() starts to measure again."""
    while _current:
        _current.pop().flush()


@cache
def _register_exit_handler() -> None:
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
            name,
            shown,
            "the progress line shows one real number for it",
            "Pass a tensor with one element, such as tf.reduce_mean() of it",
            "not_number",
        )
