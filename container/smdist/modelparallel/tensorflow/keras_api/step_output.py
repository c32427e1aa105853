# SPDX-License-Identifier: Apache-2.0
"""`smp.StepOutput`: what a step function returned for each microbatch, with SMP v1's methods."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from sagemaker_dist.errors import OptionError

_METHODS = ("variable", "add_n", "accumulate_n")  # names of SMP v1; the result is the same


class KerasStepOutput:
    """One tensor that a step function returned, for each microbatch.

    Attributes:
        outputs: Tensors by microbatch.
    """

    def __init__(self, outputs: Sequence[Any]) -> None:
        self.outputs = list(outputs)

    def reduce_mean(self) -> Any:
        """Return the mean over microbatches."""
        return self.reduce_sum() / tf.cast(len(self.outputs), self.outputs[0].dtype)

    def reduce_sum(self) -> Any:
        """Return the sum over microbatches."""
        return tf.add_n(self.outputs)

    def concat(self) -> Any:
        """Return the tensors joined along the first axis, as for the whole batch."""
        return tf.concat(self.outputs, axis=0)

    def merge(self) -> Any:
        """Return the same as `concat`."""
        return self.concat()

    def stack(self) -> Any:
        """Return the tensors stacked along a new first axis."""
        return tf.stack(self.outputs)

    def accumulate(self, method: str = "variable", var: Any = None) -> Any:
        """Return the mean over microbatches.

        Args:
            method: "variable", "add_n" or "accumulate_n", as in SMP v1; the result is the same.
            var: SMP v1's variable to accumulate in; not supported.

        Raises:
            OptionError: The method is unknown, or `var` is given.
        """
        check_accumulate(method, var)
        return self.reduce_mean()


class GradientOutput(KerasStepOutput):
    """Gradient of one variable, already averaged over microbatches and replicas."""

    def __init__(self, value: Any) -> None:
        super().__init__([value])


def check_accumulate(method: str, var: Any) -> None:
    """Check the arguments of `accumulate`.

    Raises:
        OptionError: The method is unknown, or a variable is given.
    """
    if method not in _METHODS:
        raise OptionError(
            f"method is {method!r}",
            "no way to accumulate has this name",
            f"Pass one of {', '.join(map(repr, _METHODS))}, or leave it out",
            about="method",
            kind="unknown",
        )
    if var is not None:
        raise OptionError(
            "var is given",
            "gradients are accumulated while the step runs, before this call",
            "Leave var out",
            about="var",
            kind="unsupported",
        )
