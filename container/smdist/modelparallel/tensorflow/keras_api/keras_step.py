# SPDX-License-Identifier: Apache-2.0
"""`@smp.step`: a function of one's own that runs once for each microbatch, as in SMP v1.

    @smp.step
    def train_step(images, labels):
        predictions = model(images, training=True)
        loss = loss_fn(labels, predictions)
        gradients = smp.gradients(loss, model.trainable_variables)
        return gradients, loss, predictions

    gradients, loss, predictions = train_step(images, labels)
    optimizer.apply_gradients(
        zip([each.accumulate() for each in gradients], model.trainable_variables))

The part before model(...) runs on every rank, the part after it on the rank of the last stage
alone. All ranks get what the function returns.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from functools import partial, wraps
from typing import Any

import tensorflow as tf

from sagemaker_dist.errors import OptionError
from smdist.modelparallel.tensorflow.keras_api.step_execution import StepExecution
from smdist.modelparallel.tensorflow.keras_api.step_scope import (
    GRADIENTS,
    active_scope,
)


def gradients(loss: Any, variables: Any) -> Any:
    """Compute the gradients of a loss in a function with `@smp.step`.

    It stands for `optimizer.get_gradients(loss, variables)` of SMP v1, which Keras 3 lacks.

    Args:
        loss: Loss of this microbatch, a scalar.
        variables: `model.trainable_variables`.

    Returns:
        A placeholder; what the function with `@smp.step` returns has the gradients in its place.

    Raises:
        OptionError: The call is outside of a step, or the variables are not all of the model's.
    """
    scope = active_scope("gradients")
    own = scope.model.trainable_variables
    if [id(each) for each in variables] != [id(each) for each in own]:
        raise OptionError(
            f"smp.gradients got {len(list(variables))} variables",
            f"a step computes the gradients of all {len(own)} trained variables of this rank",
            "Pass model.trainable_variables; to freeze a layer, set its trainable to False",
            about="variables",
        )
    scope.losses.append(loss)
    return GRADIENTS


def step(
    function: Callable[..., Any] | None = None, *,
    non_split_inputs: Collection[str] = (), input_split_axes: Mapping[str, int] | None = None,
) -> Any:  # fmt: skip
    """Run a function once for each microbatch; tensors in its arguments are split along axis 0.

    Args:
        function: Function that calls the distributed model once.
        non_split_inputs: Names of arguments that are passed whole.
        input_split_axes: Axis along which an argument is split, by its name; only 0 is supported.

    Raises:
        OptionError: An axis is not 0. In the step: it runs within tf.function, the function does
            not call the model, or the batch cannot be divided.
    """
    for name, axis in (input_split_axes or {}).items():
        if axis != 0:
            raise OptionError(
                f"input_split_axes has axis {axis!r} for {name!r}",
                "samples are the first axis of Keras's tensors",
                "Transpose the tensor, and leave input_split_axes out",
                about="input_split_axes",
                kind="unsupported",
            )
    if function is None:
        return partial(step, non_split_inputs=non_split_inputs)
    execution = StepExecution(function, frozenset(non_split_inputs))

    @wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        if not tf.executing_eagerly():
            raise OptionError(
                f"the step {function.__qualname__!r} was called inside a tf.function",
                "its stages exchange messages in an order that Python code decides",
                "Remove @tf.function from the caller; the stages themselves are compiled",
                about="step",
                kind="traced",
            )
        return execution.run(args, kwargs)

    return wrapper
