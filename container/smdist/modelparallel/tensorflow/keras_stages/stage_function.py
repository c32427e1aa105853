# SPDX-License-Identifier: Apache-2.0
"""Forward function of a stage as a tf.function, and its gradients by tf.GradientTape."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import keras
import tensorflow as tf

from smdist.modelparallel.tensorflow.keras_capture.layer_program import (
    LayerProgram,
    ProgramStep,
    ValueName,
    run_step,
    set_mask,
)
from smdist.modelparallel.tensorflow.keras_stages.stage_parts import StagePart

# objective(targets, outputs): loss of one microbatch, and what else the step returns for it
Objective = Callable[[Any, Any], tuple[Any, Any]]


@dataclass(frozen=True, slots=True)
class StageResult:
    """Results of the forward pass of a stage for one microbatch.

    Attributes:
        sent: Values for later stages, by name.
        loss: Sum of the stage's own losses: those of its layers and weights, and the model's
            objective on the last stage.
        outputs: On the last stage, what the model returns if no loss is computed, else what the
            objective returns beside the loss.
    """

    sent: dict[str, Any]
    loss: Any
    outputs: Any


class StageFunction:
    """Forward function of one stage, compiled once for each shape of its arguments.

    Args:
        part: Steps of the stage, and the values that enter and leave it.
        program: Program of the model.
        regularized: Trained variables whose regularizers count on this stage.
        objective: Function that computes the loss from targets and outputs, for the last stage.
        eagerly: True to run without tf.function.
    """

    def __init__(
        self, part: StagePart, program: LayerProgram, regularized: Sequence[Any],
        objective: Objective, *, eagerly: bool = False,
    ) -> None:  # fmt: skip
        self.part = part
        self.program, self._regularized, self._objective = program, regularized, objective
        self._layers = _layers(part.steps)
        run: Any = tf.autograph.experimental.do_not_convert(self._run)
        self._function = run if eagerly else tf.function(run, reduce_retracing=False)

    def __call__(self, values: Mapping[str, Any], targets: Any, *, with_loss: bool) -> StageResult:
        """Run the stage for one microbatch.

        Args:
            values: Inputs of the model and values of earlier stages, by name.
            targets: Targets and sample weights, on the last stage; else None.
            with_loss: True to compute the loss, False to return the model's outputs.
        """
        sent, loss, outputs = self._function(dict(values), targets, with_loss)
        return StageResult(sent, loss, outputs)

    def _run(self, values: dict[str, Any], targets: Any, with_loss: bool) -> Any:
        for layer in self._layers:
            layer._clear_losses()
        found = dict(values)
        for step in self.part.steps:
            run_step(step, found)
        losses = self._losses(found) if with_loss else []
        outputs = None
        if self.part.is_last:
            outputs = keras.tree.map_structure(
                lambda each: self._output(each, found), self.program.outputs
            )
            if with_loss:
                loss, outputs = self._objective(targets, outputs)
                losses.insert(0, loss)
        for layer in self._layers:
            layer._clear_losses()
        return {name: found[name] for name in self.part.sent_values}, _sum(losses), outputs

    def _output(self, value: ValueName, found: Mapping[str, Any]) -> Any:
        """Return an output of the model with its mask, which the loss and the metrics read."""
        tensor = found[value.name]
        if value.name in self.program.masks:
            set_mask(tensor, found[self.program.masks[value.name]])
        return tensor

    def _losses(self, found: Mapping[str, Any]) -> list[Any]:
        losses = [loss for layer in self._layers for loss in layer._losses]
        losses += [found[name] for name in self.part.losses]
        losses += [each.regularizer(each) for each in self._regularized]
        return [keras.ops.sum(each) for each in losses]


def _layers(steps: Sequence[ProgramStep]) -> list[Any]:
    """Return the layers of the steps, with all layers within them, each once."""
    found: dict[int, Any] = {}
    for step in steps:
        if step.is_layer:
            for layer in step.operation._flatten_layers(include_self=True, recursive=True):
                found[id(layer)] = layer
    return list(found.values())


def _sum(losses: Sequence[Any]) -> Any:
    if not losses:
        return tf.zeros([], keras.config.floatx())
    total = losses[0]
    for each in losses[1:]:
        total = total + tf.cast(each, total.dtype)
    return total
