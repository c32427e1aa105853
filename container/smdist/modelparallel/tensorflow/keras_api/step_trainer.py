# SPDX-License-Identifier: Apache-2.0
"""Run of a step function's batch through the stages of a split model."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from smdist.modelparallel.tensorflow.keras_api.step_execution import (
    StepExecution,
    StepShape,
    numbered,
)
from smdist.modelparallel.tensorflow.keras_stages.gradient_update import (
    average_replicas,
    squares_of_own,
    sum_of_numbers,
    sum_ties,
)
from smdist.modelparallel.tensorflow.keras_stages.keras_split import SplitKerasModel
from smdist.modelparallel.tensorflow.keras_stages.pipeline_batch import PipelineBatch
from smdist.modelparallel.tensorflow.keras_stages.pipeline_run import PipelineRun
from smdist.modelparallel.tensorflow.keras_stages.stage_messages import (
    FORWARD,
    RESULTS,
    MessageKey,
    StageMessages,
)


@dataclass(slots=True)
class StepTrainer:
    """Runs one step function with one split model; all ranks call `run` together.

    Attributes:
        execution: The step function.
        owner: The distributed model.
        split: Split model whose objective is the step function.
        variables: Trained variables of this rank.
    """

    execution: StepExecution
    owner: Any
    split: SplitKerasModel
    variables: list[Any]

    @classmethod
    def of(
        cls, execution: StepExecution, owner: Any, split: SplitKerasModel, rest: dict[str, Any]
    ) -> StepTrainer:
        """Return a trainer whose last stage computes what the step function returns."""

        def objective(targets: Any, outputs: Any) -> tuple[Any, Any]:
            result, loss = execution.after_model(owner, outputs, targets, rest)
            zero = tf.zeros([], keras.config.floatx())
            return (zero if loss is None else loss), numbered(result)[1]

        return cls(
            execution, owner, replace(split, objective=objective, _ready={}),
            list(owner.trainable_variables),
        )  # fmt: skip

    def run(
        self, batch: PipelineBatch, rest: dict[str, Any]
    ) -> tuple[StepShape, list[list[Any]], list[Any]]:
        """Run all microbatches.

        Args:
            batch: Arguments that are split.
            rest: Arguments that are passed whole.

        Returns:
            What the function returns, its tensors for each microbatch, and the gradients.
        """
        split = self.split
        count = split.plan.num_microbatches
        first = batch.split(count)[0]
        part, training = self._prepared(first, rest)
        ready = split.stages(part, training=training)
        program = ready.functions[split.own_stages[0]].program
        specs = keras.tree.map_structure(
            lambda each: tf.TensorSpec(program.specs[each.name].shape,
                                       program.specs[each.name].dtype),
            program.outputs,
        )  # fmt: skip
        shape = self.execution.shape(self.owner, specs, first.microbatch_example, rest)
        run = PipelineRun(
            layout=ready.layout, functions=ready.functions, num_microbatches=count,
            variables={
                stage: [each for each in split.variables(stage) if each.trainable]
                for stage in split.own_stages
            },
            prepare=lambda piece: self._prepared(piece, rest)[0], sends_all=True,
        )  # fmt: skip
        if shape.has_gradients:
            run.train(batch, split.plan.actions.orders[split.session.pp_rank])
        else:
            run.infer(batch, with_loss=True)
        gradients = self._gradients(run) if shape.has_gradients else []
        return shape, self._shared(run, shape), gradients

    def _prepared(self, piece: PipelineBatch, rest: dict[str, Any]) -> tuple[PipelineBatch, bool]:
        """Return a microbatch with the inputs that the function passes to the model."""
        arguments = piece.microbatch_example
        inputs, training = self.execution.inputs_of(arguments, rest)
        found = PipelineBatch.of(inputs)
        return replace(found, targets=arguments), training

    def _gradients(self, run: PipelineRun) -> list[Any]:
        gradients = dict(run.gradients)
        sum_ties(self.split, gradients)
        session = self.split.session
        found = average_replicas(session, self.variables, gradients)
        limit = session.options.gradient_clipping
        if limit is None:
            return found
        slots = np.zeros([session.num_replicas])
        slots[session.replica] = 1.0
        mine = squares_of_own(self.split, self.variables, found)
        norm = tf.sqrt(sum_of_numbers(tf.constant(slots) * mine)[session.replica])
        factor = limit / tf.maximum(norm, limit)
        return [None if each is None else each * tf.cast(factor, each.dtype) for each in found]

    def _shared(self, run: PipelineRun, shape: StepShape) -> list[list[Any]]:
        """Send the tensors that the function returns to all ranks of the pipeline."""
        split, rank = self.split, self.split.session.rank
        last, messages = split.rank_of[-1], StageMessages(run.num_microbatches, RESULTS)
        found: list[list[Any]] = []
        for microbatch in range(run.num_microbatches):
            keys = [MessageKey(number, FORWARD, microbatch) for number in range(len(shape.specs))]
            if rank == last:
                found.append(list(run.outputs[microbatch]))
                for other in dict.fromkeys(split.rank_of):
                    for key, value in zip(keys, found[-1], strict=True):
                        if other != last:
                            messages.send(value, other, key)
            else:
                found.append([
                    messages.receive(spec.shape.as_list(), spec.dtype.name, last, key)
                    for key, spec in zip(keys, shape.specs, strict=True)
                ])  # fmt: skip
        messages.finish()
        return found
