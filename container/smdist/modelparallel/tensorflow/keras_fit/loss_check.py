# SPDX-License-Identifier: Apache-2.0
"""Check of losses of one's own: a batch taken twice shows whether a loss is a sum or a mean.

A loss with every sample twice is as large as before if it is a mean, and twice as large if it is a
sum. Gradients are averages over microbatches and replicas, which are wrong for a sum. A loss that
is neither, such as one that compares the samples of a batch with each other, cannot be judged.
"""

from __future__ import annotations

from typing import Any, Final

import keras
import tensorflow as tf

from sagemaker_dist.errors import OptionError

_TOLERANCE: Final = 1e-4  # relative; sums of float32 in another order differ by less


def is_own(loss: Any) -> bool:
    """Tell whether an argument `loss` of compile() has code that is none of Keras's."""
    return any(each is not None and not _is_of_keras(each) for each in keras.tree.flatten(loss))


def sum_fault(compiled: Any, targets: Any, outputs: Any) -> OptionError | None:
    """Return the error about a loss that is a sum over the batch; None if none is seen.

    Args:
        compiled: Loss of a compiled model; the states of its metrics stay as they are.
        targets: Pair of targets and sample weights of one microbatch.
        outputs: What the model returns for it.
    """
    states = [(each, each.numpy()) for metric in compiled.metrics for each in metric.variables]
    try:
        once = _losses(compiled, targets, outputs)
        doubled = keras.tree.map_structure(_twice, (targets, outputs))
        twice = _losses(compiled, *doubled)
    except Exception:  # any error: code of one's own may need this number of samples
        return None
    finally:
        for metric in compiled.metrics:  # metrics of the first call have no earlier states
            metric.reset_state()
        for variable, value in states:
            variable.assign(value)
    for name, value in once.items():
        if value and abs(twice[name] / value - 2) < _TOLERANCE:
            return OptionError(
                f"{name} is a sum over the samples of a batch",
                f"it is {value:.6g} for a microbatch and {twice[name]:.6g} for the same samples"
                " twice, and a step averages losses over microbatches and replicas",
                "Return the mean of the samples' losses, or the loss of each sample",
                about="loss",
                kind="unsupported",
            )
    return None


def _is_of_keras(loss: Any) -> bool:
    try:
        found = keras.losses.get(loss) if isinstance(loss, str | dict) else loss
    except ValueError:  # no name that Keras knows, which compile() or the first batch refuses
        return True
    inner = getattr(found, "fn", found)
    module = getattr(inner, "__module__", type(inner).__module__)
    return str(module).partition(".")[0] == "keras"


def _losses(compiled: Any, targets: Any, outputs: Any) -> dict[str, float]:
    """Return the loss of each output by its name; a model with one output has no names."""
    for metric in compiled.metrics:
        metric.reset_state()
    total = compiled(targets[0], outputs, targets[1])
    found = {f"the loss {each.name!r}": float(each.result()) for each in compiled.metrics}
    return found or {"the loss": float(total)}


def _twice(value: Any) -> Any:
    return None if value is None else tf.concat([value, value], axis=0)
