# SPDX-License-Identifier: Apache-2.0
"""Arguments of compile() that do not work with a split model; each is refused by its name."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import keras

from sagemaker_dist.errors import OptionError, raise_all


def compile_faults(arguments: Mapping[str, Any]) -> None:
    """Check the keyword arguments of compile().

    Raises:
        OptionError: An argument does not work with a split model; all faults are reported.
    """
    raise_all([*_jit(arguments), *_reductions(arguments.get("loss")), *_optimizer(arguments)])


def _jit(arguments: Mapping[str, Any]) -> Iterator[OptionError]:
    if arguments.get("jit_compile") is True:
        yield OptionError(
            "jit_compile is True",
            "XLA would compile a whole step, and stages exchange tensors within a step",
            'Leave it out, or pass "auto" or False',
            about="jit_compile",
            kind="unsupported",
        )


def _reductions(loss: Any) -> Iterator[OptionError]:
    for each in keras.tree.flatten(loss):
        if isinstance(each, keras.losses.Loss) and each.reduction in ("sum", "none", None):
            yield OptionError(
                f"the loss {each.name!r} has the reduction {each.reduction!r}",
                "the loss of a batch is the mean of the losses of its microbatches",
                'Use the reduction "sum_over_batch_size" or "mean_with_sample_weight"',
                about="loss",
                kind="unsupported",
            )


def _optimizer(arguments: Mapping[str, Any]) -> Iterator[OptionError]:
    optimizer = arguments.get("optimizer")
    inner = getattr(optimizer, "inner_optimizer", optimizer)
    steps = getattr(inner, "gradient_accumulation_steps", None)
    if steps and getattr(inner, "global_clipnorm", None):
        yield OptionError(
            f"the optimizer has global_clipnorm and gradient_accumulation_steps={steps}",
            "the norm of the whole model is computed in every step, before gradients accumulate",
            "Leave one of them out, or use a larger batch with more microbatches",
            about="gradient_accumulation_steps",
            kind="conflict",
        )
