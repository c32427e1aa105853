# SPDX-License-Identifier: Apache-2.0
"""Execution of a step function: its arguments are split, and its parts run where they belong."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import keras
import tensorflow as tf

from sagemaker_dist.errors import OptionError
from smdist.modelparallel.tensorflow.keras_api.step_output import GradientOutput, KerasStepOutput
from smdist.modelparallel.tensorflow.keras_api.step_scope import (
    GRADIENTS,
    ModelReached,
    step_scope,
)
from smdist.modelparallel.tensorflow.keras_capture import automatic_names_kept
from smdist.modelparallel.tensorflow.keras_stages.pipeline_batch import PipelineBatch


@dataclass(frozen=True, slots=True)
class StepShape:
    """Result of a step function for one microbatch, found by tracing it.

    Attributes:
        tree: Structure with an index for each tensor, and GRADIENTS in place of gradients.
        specs: Shape and dtype of each tensor.
        has_gradients: True if the function calls smp.gradients().
    """

    tree: Any
    specs: tuple[Any, ...]
    has_gradients: bool


class StepExecution:
    """Runs a step function with one batch after another.

    Args:
        function: The user's function.
        whole: Names of arguments that are not split.
    """

    def __init__(self, function: Callable[..., Any], whole: frozenset[str]) -> None:
        self._function, self._whole = function, whole
        self._shapes: dict[Any, StepShape] = {}

    @automatic_names_kept()
    def run(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run the function for all microbatches of a batch, on all ranks.

        Returns:
            What the function returns, with a KerasStepOutput in place of each tensor, and a list of
            GradientOutput in place of the gradients.
        """
        bound = inspect.signature(self._function).bind(*args, **kwargs)
        split = {k: v for k, v in bound.arguments.items() if k not in self._whole}
        rest = {k: v for k, v in bound.arguments.items() if k in self._whole}
        batch = PipelineBatch.of(split)
        if not batch.inputs or not all(map(tf.is_tensor, batch.inputs)):
            raise OptionError(
                f"the step {self._function.__qualname__!r} got no tensors to split",
                "a step runs the microbatches of the batch in its arguments",
                "Pass the batch, and name other arguments in non_split_inputs",
                about="step",
                kind="no_tensor",
            )
        model, _ = self._reached(batch.microbatch_example, rest)
        return self._joined(*model.run_step(self, batch, rest))

    def inputs_of(self, split: dict[str, Any], rest: dict[str, Any]) -> tuple[Any, bool]:
        """Return the inputs that the function passes to the model, and its argument `training`."""
        _, reached = self._reached(split, rest)
        return reached.inputs, reached.training

    def after_model(self, model: Any, outputs: Any, split: Any, rest: Any) -> tuple[Any, Any]:
        """Run the function with given outputs of the model; return its result and its loss."""
        with step_scope(model, outputs) as scope:
            result = self._call(split, rest)
        if len(scope.losses) > 1:
            raise OptionError(
                f"{self._function.__qualname__!r} calls smp.gradients {len(scope.losses)} times",
                "a step has one backward pass",
                "Add the losses, and call smp.gradients once",
                about="gradients",
                kind="unsupported",
            )
        return result, scope.losses[0] if scope.losses else None

    def shape(self, model: Any, outputs: Any, split: Any, rest: Any) -> StepShape:
        """Trace the function for one microbatch; all ranks do so, and find the same.

        Args:
            model: The distributed model.
            outputs: tf.TensorSpec of each output of the model, in its structure.
            split: Arguments of one microbatch.
            rest: Arguments that are passed whole.
        """
        key = str(keras.tree.map_structure(lambda each: (each.shape, each.dtype), (outputs, split)))
        if key not in self._shapes:
            found: list[StepShape] = []

            def trace(given: Any, parts: Any) -> Any:
                result, loss = self.after_model(model, given, parts, rest)
                tree, leaves = numbered(result)
                specs = tuple(tf.TensorSpec(each.shape, each.dtype) for each in leaves)
                found.append(StepShape(tree, specs, has_gradients=loss is not None))
                return leaves

            tf.function(tf.autograph.experimental.do_not_convert(trace)).get_concrete_function(
                outputs, keras.tree.map_structure(tf.TensorSpec.from_tensor, split)
            )
            self._shapes[key] = found[-1]
        return self._shapes[key]

    def _reached(self, split: dict[str, Any], rest: dict[str, Any]) -> tuple[Any, ModelReached]:
        try:
            with step_scope():
                self._call(split, rest)
        except ModelReached as reached:
            return reached.model, reached
        raise OptionError(
            f"the step {self._function.__qualname__!r} does not call a distributed model",
            "a step runs the model's stages",
            "Call the smp.DistributedModel in it",
            about="step",
            kind="missing",
        )

    def _call(self, split: dict[str, Any], rest: dict[str, Any]) -> Any:
        bound = inspect.signature(self._function).bind_partial()
        bound.arguments.update({**split, **rest})
        order = [name for name in bound.signature.parameters if name in bound.arguments]
        bound.arguments = {name: bound.arguments[name] for name in order}
        return self._function(*bound.args, **bound.kwargs)

    def _joined(self, shape: StepShape, pieces: list[list[Any]], gradients: list[Any]) -> Any:
        """Return the result for all microbatches."""

        def output(each: Any) -> Any:
            if each is GRADIENTS:
                return [GradientOutput(value) for value in gradients]
            if isinstance(each, TensorIndex):
                return KerasStepOutput([piece[each.number] for piece in pieces])
            return each

        return keras.tree.map_structure(output, shape.tree)


@dataclass(frozen=True, slots=True)
class TensorIndex:
    """Number of a tensor in the result of a step function."""

    number: int


def numbered(result: Any) -> tuple[Any, list[Any]]:
    """Return a structure with numbers in place of its tensors, and the tensors."""
    leaves: list[Any] = []

    def replaced(each: Any) -> Any:
        if not tf.is_tensor(each):
            return each
        leaves.append(each)
        return TensorIndex(len(leaves) - 1)

    return keras.tree.map_structure(replaced, result), leaves
