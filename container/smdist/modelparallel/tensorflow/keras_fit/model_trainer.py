# SPDX-License-Identifier: Apache-2.0
"""Training, evaluation and prediction of one batch of a split Keras model."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from sagemaker_dist.errors import OptionError, raise_all
from smdist.dataparallel.tensorflow.broadcast_objects import allgather_object
from smdist.modelparallel.tensorflow.keras_fit.loss_check import is_own, sum_fault
from smdist.modelparallel.tensorflow.keras_fit.metric_states import joined_states
from smdist.modelparallel.tensorflow.keras_stages.gradient_update import (
    average_replicas,
    count_step,
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


class ModelTrainer:
    """Runs batches through a split model; all ranks call each method together.

    Args:
        split: The split model.
        owner: Compiled `keras.Model` with optimizer, loss and metrics.
    """

    def __init__(self, split: SplitKerasModel, owner: Any) -> None:
        self._split, self._owner = split, owner
        self._session = split.session
        self._names: dict[bool, tuple[str, ...]] = {}
        self._orders: dict[tuple[str, ...], list[str]] = {}
        self._update: Any = None
        self._is_skipped = False
        self._is_loss_checked = False
        self._tracked = _compiled_mean(owner._loss_tracker)
        self._losses: list[tuple[float, float]] = []  # sums of losses, and numbers of samples
        own = {id(each) for each in split.own_variables()}
        self.variables = [each for each in split.trained if id(each) in own]
        self.gradients: list[Any] = []  # last step, in the order of `variables`

    def train(self, batch: PipelineBatch) -> None:
        """Train one batch.

        Raises:
            OptionError: The loss is a sum over the batch; raised on every rank.
        """
        self._check_loss(batch)
        run = self._train_run(batch)
        order = self._split.plan.actions.orders[self._session.pp_rank]
        run.train(batch, order)
        gradients = dict(run.gradients)
        sum_ties(self._split, gradients)
        found = average_replicas(self._session, self.variables, gradients)
        found = self._finished(found)
        self.gradients = found
        self._apply(found)
        self._count(run, batch)

    def test(self, batch: PipelineBatch) -> None:
        """Evaluate one batch.

        Raises:
            OptionError: The loss is a sum over the batch; raised on every rank.
        """
        self._check_loss(batch)
        run = self._inference_run(batch)
        run.infer(batch, with_loss=True)
        self._count(run, batch)

    def _count(self, run: PipelineRun, batch: PipelineBatch) -> None:
        """Add the loss of a batch, as many times as it has samples, to those not in logs yet."""
        loss = run.loss / run.num_microbatches
        self._losses.append((float(loss) * batch.size, float(batch.size)))

    def predict(self, batch: PipelineBatch) -> Any:
        """Return what the model returns for a batch, on all ranks of the pipeline."""
        run = self._inference_run(batch)
        run.infer(batch, with_loss=False)
        return self._shared(run, batch)

    def _train_run(self, batch: PipelineBatch) -> PipelineRun:
        count = self._split.plan.num_microbatches
        return self._run(batch, count, training=True)

    def _inference_run(self, batch: PipelineBatch) -> PipelineRun:
        """Return a run with as many microbatches as divide the batch, at most those of the plan."""
        most = min(self._split.plan.num_microbatches, batch.size)
        count = next(each for each in range(most, 0, -1) if batch.size % each == 0)
        return self._run(batch, count, training=False)

    def _run(self, batch: PipelineBatch, count: int, *, training: bool) -> PipelineRun:
        ready = self._split.stages(batch.split(count)[0], training=training)
        variables = {
            stage: [each for each in self._split.variables(stage) if each.trainable]
            for stage in self._split.own_stages
        }
        return PipelineRun(
            layout=ready.layout, functions=ready.functions, variables=variables,
            num_microbatches=count, loss_scale=self._loss_scale() if training else 1.0,
        )  # fmt: skip

    def _loss_scale(self) -> Any:
        scale = self._owner.optimizer.scale_loss(tf.ones([], tf.float32))
        return tf.cast(scale, tf.float64)

    def _finished(self, gradients: list[Any]) -> list[Any]:
        """Return the gradients, clipped by the norm of the whole model.

        With loss scaling, a gradient that is not finite on one rank makes all ranks skip the step.
        """
        limit = self._clipping()
        scales = isinstance(self._owner.optimizer, keras.optimizers.LossScaleOptimizer)
        if limit is None and not scales:
            return gradients
        slots = np.zeros([self._session.num_replicas])
        slots[self._session.replica] = 1.0
        mine = squares_of_own(self._split, self.variables, gradients)
        total = sum_of_numbers(tf.constant(slots) * mine)[self._session.replica]
        self._is_skipped = scales and not np.isfinite(total.numpy())
        factor = tf.where(tf.math.is_finite(total), tf.ones([], tf.float64), np.nan)
        if limit is not None:
            norm = tf.sqrt(total) / self._loss_scale()
            factor *= limit / tf.maximum(norm, limit)
        return [None if each is None else each * tf.cast(factor, each.dtype) for each in gradients]

    def _clipping(self) -> float | None:
        optimizer = self._owner.optimizer
        optimizer = getattr(optimizer, "inner_optimizer", optimizer)
        limits = [optimizer.global_clipnorm, self._session.options.gradient_clipping]
        given = [float(each) for each in limits if each is not None]
        return min(given, default=None)

    def _apply(self, gradients: list[Any]) -> None:
        pairs = [
            (gradient, variable)
            for gradient, variable in zip(gradients, self.variables, strict=True)
            if gradient is not None
        ]
        optimizer = self._owner.optimizer
        if not pairs:
            count_step(optimizer, is_skipped=self._is_skipped)
            return
        if self._update is None:

            def update(found: list[Any]) -> None:
                optimizer.apply_gradients(
                    [(each, variable) for each, variable in zip(found, self.variables, strict=True)
                     if each is not None]
                )  # fmt: skip

            self._update = (
                update
                if self._owner.run_eagerly
                else tf.function(tf.autograph.experimental.do_not_convert(update))
            )
        self._update(gradients)

    def _check_loss(self, batch: PipelineBatch) -> None:
        """Check once that the loss is no sum over the batch, which averages would make smaller."""
        loss = self._owner._compile_loss
        count = self._split.plan.num_microbatches * self._session.num_replicas
        if self._is_loss_checked or count == 1:
            return
        self._is_loss_checked = True
        if not any(allgather_object(loss is not None and is_own(loss._user_loss))):
            return
        run, fault = self._inference_run(batch), None
        run.infer(batch, with_loss=False)
        if run.outputs and loss is not None:
            fault = sum_fault(loss, run.microbatches[0].targets, run.outputs[0])
        raise_all([each for each in allgather_object(fault) if each is not None][:1])

    def logs(self, *, training: bool) -> dict[str, Any]:
        """Return loss and metrics since they were last reset, of the samples of all replicas.

        They are equal on all ranks. Each rank adds the losses of its own stages and the metrics
        that it computes.

        Args:
            training: True after `train`, False after `test`.
        """
        own = self._own_metrics()
        if training not in self._names:
            every = allgather_object(tuple(own))
            self._names[training] = tuple(sorted({name for names in every for name in names}))
        names = self._names[training]
        replicas = self._session.num_replicas
        total, samples = map(sum, zip(*self._losses, strict=True))
        self._losses.clear()
        counted = samples if self._session.pp_rank == 0 else 0.0  # once for each replica
        values = [total, counted, *(own.get(name, 0.0) for name in names)]
        total, samples, *rest = sum_of_numbers(tf.constant(values, tf.float64)).numpy()
        loss = self._tracked(tf.constant(total / samples), tf.constant(samples))  # may overflow
        found = {name: float(each) / replicas for name, each in zip(names, rest, strict=True)}
        return {"loss": float(loss), **found}

    def names_of_last(self, own: str | list[str]) -> list[str]:
        """Return the names of logs in the order of the last stage's rank; all ranks call this.

        Args:
            own: Names in this rank's order.
        """
        names = [own] if isinstance(own, str) else own
        key = tuple(sorted(set(names)))
        if key not in self._orders:
            every = allgather_object(names)
            self._orders[key] = every[self._split.rank_of[-1]]
        return self._orders[key]

    def _own_metrics(self) -> dict[str, float]:
        """Return the metrics of all replicas that this rank computes, by name."""
        found: dict[str, Any] = {}
        metrics = self._metrics_here()
        with joined_states(metrics, self._session.replica_ranks):
            for metric in metrics:
                result = metric.result()
                found |= result if isinstance(result, Mapping) else {metric.name: result}
            return {name: _number(each) for name, each in found.items()}  # may be a variable

    def _metrics_here(self) -> list[Any]:
        """Return the metrics of the model if this rank has the last stage, and those of layers."""
        metrics = []
        if self._split.rank_of[-1] == self._session.rank:
            loss, compiled = self._owner._compile_loss, self._owner._compile_metrics
            metrics += [] if compiled is None else [compiled]
            metrics += [] if loss is None else list(loss.metrics)
        return metrics

    def _shared(self, run: PipelineRun, batch: PipelineBatch) -> Any:
        """Send the model's outputs to the other ranks of the pipeline, and return them."""
        split, rank = self._split, self._session.rank
        last = split.rank_of[-1]
        ready = split.stages(batch.split(run.num_microbatches)[0], training=False)
        program = ready.functions[next(iter(ready.functions))].program
        messages = StageMessages(1, RESULTS)
        if rank == last:
            joined = [
                tf.concat(pieces, axis=0) if pieces[0].shape.rank else tf.reduce_mean(pieces)
                for pieces in zip(*(keras.tree.flatten(each) for each in run.outputs), strict=True)
            ]
            for other in dict.fromkeys(split.rank_of):
                for number, value in enumerate(joined if other != last else []):
                    messages.send(value, other, MessageKey(number, FORWARD, 0))
            messages.finish()
        else:
            joined = []
            for number, name in enumerate(program.output_names):
                spec = program.specs[name]
                shape = [spec.shape[0] * run.num_microbatches, *spec.shape[1:]]
                key = MessageKey(number, FORWARD, 0)
                joined.append(messages.receive(shape, spec.dtype, last, key))
        return keras.tree.pack_sequence_as(program.outputs, joined)


def _compiled_mean(tracker: Any) -> Any:
    """Return a function that adds a value with its weight to a mean, and returns the mean."""

    def tracked(value: Any, weight: Any) -> Any:
        tracker.update_state(value, sample_weight=weight)
        return tracker.result()

    return tf.function(tf.autograph.experimental.do_not_convert(tracked))


def _number(value: Any) -> float:
    found = np.asarray(value)
    if found.ndim:
        raise OptionError(
            f"a metric has the shape {found.shape}",
            "all ranks get the metrics of a split model as numbers",
            "Pass metrics whose result is one number",
            about="metrics",
            kind="unsupported",
        )
    return float(found)
