# SPDX-License-Identifier: Apache-2.0
"""`smp.DistributedModel`: a Keras model whose layers are divided over the ranks of a pipeline.

    model = smp.DistributedModel(model)
    model.compile(optimizer="adam", loss="mse")
    model.fit(x, y, batch_size=64)

A class may also derive from it, as in SMP v1: its instances are split themselves.

    class MyModel(smp.DistributedModel):
        def __init__(self):
            super().__init__()
            self.hidden, self.head = keras.layers.Dense(64), keras.layers.Dense(10)

        def call(self, x):
            return self.head(self.hidden(x))

Keras's own fit, evaluate and predict read the data and call the callbacks; only the step is
replaced. The model is captured, planned and split at the first batch.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import keras
import tensorflow as tf

from sagemaker_dist.errors import OptionError
from smdist.modelparallel.core.plan import Plan
from smdist.modelparallel.tensorflow.keras_api.checkpointed_model import CheckpointedModel
from smdist.modelparallel.tensorflow.keras_api.layer_stages import marks_of
from smdist.modelparallel.tensorflow.keras_api.model_checks import (
    check_layers,
    check_model,
    check_state,
    check_subclass,
)
from smdist.modelparallel.tensorflow.keras_api.step_scope import called
from smdist.modelparallel.tensorflow.keras_api.step_trainer import StepTrainer
from smdist.modelparallel.tensorflow.keras_capture import capture, graph_of
from smdist.modelparallel.tensorflow.keras_checkpoint.optimizer_slots import build_slots
from smdist.modelparallel.tensorflow.keras_fit.batch_loop import over_iterator, over_list
from smdist.modelparallel.tensorflow.keras_fit.compile_checks import compile_faults
from smdist.modelparallel.tensorflow.keras_fit.epoch_callback import EpochCallback, with_epochs
from smdist.modelparallel.tensorflow.keras_fit.model_trainer import ModelTrainer
from smdist.modelparallel.tensorflow.keras_fit.rank_errors import others_aborted
from smdist.modelparallel.tensorflow.keras_fit.step_agreement import TEST, TRAIN, StepAgreement
from smdist.modelparallel.tensorflow.keras_planning.agreed_plan import agreed_plan
from smdist.modelparallel.tensorflow.keras_planning.cost_source import costs_by
from smdist.modelparallel.tensorflow.keras_session import current_session, run_hooks
from smdist.modelparallel.tensorflow.keras_stages.keras_split import SplitKerasModel
from smdist.modelparallel.tensorflow.keras_stages.pipeline_batch import PipelineBatch
from smdist.modelparallel.tensorflow.keras_stages.variable_values import (
    release_others,
    share_values,
)


class DistributedModel(CheckpointedModel):
    """A Keras model that is trained in stages, one or several on each rank of a pipeline.

    Args:
        model: The model: functional, sequential or subclassed. A subclass of this class with a
            call() of its own leaves it out, and is the model itself.
        costs: "measure" to run each kind of layer once for the plan, "estimate" to compute costs
            from shapes, or "auto", which measures.
        kwargs: Arguments of keras.Model for a subclass: name, dtype, trainable.

    Raises:
        OptionError: smp.init was not called, the model is none of Keras, or has code that only
            Keras's own fit() would run.
    """

    train_function: Any
    test_function: Any
    predict_function: Any

    def __init__(self, model: Any = None, *, costs: str = "auto", **kwargs: Any) -> None:
        session, is_itself = current_session(), model is None and type(self) is not DistributedModel
        costs_by(costs)
        if is_itself:
            check_subclass(self, DistributedModel)
            super().__init__(**kwargs)
        else:
            check_model(model)
            kwargs = {"name": f"distributed_{model.name}", "dtype": model.dtype_policy, **kwargs}
            super().__init__(**kwargs)
        # kept from Keras, which would track the layers of the model as layers of this one
        hidden = {"model": model, "session": session, "costs": costs}
        hidden["agreement"] = StepAgreement(session)
        object.__setattr__(self, "_hidden", hidden)

    @property
    def _run(self) -> Any:
        """Function that calls the whole model; None if a call of the model itself does."""
        return partial(keras.Model.__call__, self) if self._hidden["model"] is None else None

    def get_config(self) -> dict[str, Any]:
        """Return the configuration of the model and of its split, for `keras.models.clone_model`.

        A clone is a distributed model that is not split yet, with new values of its variables.
        """
        if self._hidden["model"] is None:
            return dict(super().get_config())
        model = keras.saving.serialize_keras_object(self.whole_model())
        return {"model": model, "costs": self._hidden["costs"], "name": self.name}

    def get_compile_config(self) -> None:
        """Return None, since a clone needs an optimizer of its own: call compile() for it."""
        return

    @classmethod
    def from_config(cls, config: dict[str, Any], custom_objects: Any = None) -> Any:
        """Return a distributed model of the configuration that `get_config` returns.

        Args:
            config: The configuration.
            custom_objects: Classes of the model by name, as Keras takes them.
        """
        if cls is not DistributedModel:
            return super().from_config(config, custom_objects)
        model = keras.saving.deserialize_keras_object(config["model"], custom_objects)
        return cls(model, **{name: value for name, value in config.items() if name != "model"})

    def __reduce__(self) -> Any:
        raise OptionError(
            f"the model {self.name!r} cannot be copied or pickled",
            "this rank has the variables of its stages alone",
            "Use keras.models.clone_model for a model of the same layers, and save() with"
            " load_checkpoint() for their values",
            about="model",
            kind="unsupported",
        )

    @property
    def plan(self) -> Plan | None:
        """Plan with the layers of each stage; None before the first batch."""
        trainer = self._hidden.get("trainer")
        return None if trainer is None else self._hidden["split"].plan

    def __call__(self, inputs: Any, training: bool = False) -> Any:
        """Run the model in a function with `@smp.step`.

        Raises:
            OptionError: The call is elsewhere; no rank has all layers of the model.
        """
        return called(self, inputs, training=bool(training))

    def run_step(self, execution: Any, batch: PipelineBatch, rest: dict[str, Any]) -> Any:
        """Run a function with `@smp.step` for all microbatches; `smp.step` calls this.

        Args:
            execution: The function.
            batch: Its arguments that are split.
            rest: Its arguments that are passed whole.
        """
        with others_aborted():
            inputs, _ = execution.inputs_of(batch.microbatch_example, rest)
            self._ready(PipelineBatch.of(inputs))
            steps = self._hidden.setdefault("steps", {})
            if id(execution) not in steps:
                split = self._hidden["split"]
                steps[id(execution)] = StepTrainer.of(execution, self, split, rest)
            return steps[id(execution)].run(batch, rest)

    def compile(self, *args: Any, **kwargs: Any) -> None:
        """Set optimizer, loss and metrics, as `keras.Model.compile`.

        Raises:
            OptionError: An argument does not work with a split model; all faults are reported.
        """
        compile_faults({**dict(zip(("optimizer", "loss"), args, strict=False)), **kwargs})
        kwargs["jit_compile"] = False
        super().compile(*args, **kwargs)
        self._hidden.pop("trainer", None)
        self._hidden["agreement"].is_ready = False
        names = ("loss", "loss_weights", "metrics", "weighted_metrics")
        given = {**dict(zip(("optimizer", *names), args, strict=False)), **kwargs}
        self._hidden["compile"] = {name: given[name] for name in names if name in given}

    def fit(self, *args: Any, **kwargs: Any) -> Any:
        """Train the model, as `keras.Model.fit`; every rank calls this with data of equal shapes.

        The data of the first rank of a pipeline count. Only rank 0 prints progress, unless
        `verbose` is passed.
        """
        agreement: StepAgreement = self._hidden["agreement"]
        counter = EpochCallback(partial(agreement.begin, TRAIN), self._count)
        kwargs["callbacks"] = with_epochs(kwargs.get("callbacks"), counter)
        history = super().fit(*args, **self._quiet(kwargs))
        agreement.end(TRAIN)
        return history

    def _count(self, finished: int) -> None:
        self._hidden["epoch"] = finished

    def evaluate(self, *args: Any, **kwargs: Any) -> Any:
        """Return loss and metrics, as `keras.Model.evaluate`; every rank calls this."""
        agreement: StepAgreement = self._hidden["agreement"]
        agreement.begin(TEST)
        found = super().evaluate(*args, **self._quiet(kwargs))
        agreement.end(TEST)
        return found

    def predict(self, *args: Any, **kwargs: Any) -> Any:
        """Return the model's outputs, as `keras.Model.predict`; every rank calls this.

        Replicas may have different numbers of batches once the model is split.
        """
        agreement: StepAgreement = self._hidden["agreement"]
        with agreement.prediction():
            return super().predict(*args, **self._quiet(kwargs))

    def _quiet(self, kwargs: dict[str, Any]) -> dict[str, Any]:
        if self._hidden["session"].rank and kwargs.get("verbose", "auto") == "auto":
            return {**kwargs, "verbose": 0}
        return kwargs

    def make_train_function(self, force: bool = False) -> None:
        """Set the function that trains batches of an iterator."""
        if self.train_function is None or force:
            self.train_function = self._over_iterator(TRAIN)

    def make_test_function(self, force: bool = False) -> None:
        """Set the function that evaluates batches of an iterator."""
        if self.test_function is None or force:
            self.test_function = self._over_iterator(TEST)

    def make_predict_function(self, force: bool = False) -> None:
        """Set the function that predicts a list of batches."""
        if self.predict_function is None or force:
            self.predict_function = over_list(self._hidden["agreement"], self._ready)

    def _over_iterator(self, call: str) -> Any:
        agreement: StepAgreement = self._hidden["agreement"]
        return over_iterator(call, agreement, self._ready, lambda: self.steps_per_execution)

    def _flatten_metrics_in_order(self, logs: dict[str, Any]) -> Any:
        """Return numbers in the order of Keras, which only the rank of the last stage knows."""
        trainer: ModelTrainer = self._hidden["trainer"]
        own = super()._flatten_metrics_in_order({name: name for name in logs})
        found = [logs[name] for name in trainer.names_of_last(own)]
        return found[0] if len(found) == 1 else found

    def _get_metrics_result_or_logs(self, logs: Any) -> Any:
        return logs  # metrics are computed on one rank, and the logs of a step are on all

    def _ready(self, batch: PipelineBatch) -> ModelTrainer:
        """Return the trainer; capture, plan and split the model at the first batch."""
        if "split" not in self._hidden:
            self._hidden["split"] = self._split(batch)
        if "trainer" not in self._hidden:
            split = self._hidden["split"]
            split.eagerly = bool(self.run_eagerly)
            split._ready.clear()
            trainer = ModelTrainer(split, self)
            self._hidden["trainer"] = trainer
            self._hidden["slots"] = self._built_slots(trainer.variables)
            if "pending" in self._hidden:
                self.load_checkpoint(self._hidden.pop("pending"))
            self._hidden["agreement"].is_ready = True
        ready: ModelTrainer = self._hidden["trainer"]
        return ready

    def _built_slots(self, variables: list[Any]) -> tuple[Any, ...]:
        if getattr(self, "optimizer", None) is None:  # before compile()
            return ()
        if self.optimizer.built:
            raise OptionError(
                f"the optimizer {self.optimizer.name!r} was used before",
                "it has variables for other weights than those of this rank's stages",
                "Pass compile() a new optimizer",
                about="optimizer",
                kind="conflict",
            )
        return tuple(build_slots(self.optimizer, variables))

    def _split(self, batch: PipelineBatch) -> SplitKerasModel:
        session, model, run = self._hidden["session"], self.whole_model(), self._run
        if run is not None:
            check_layers(model)
        if not session.options.auto_partition:  # call() may have blocks of smp.partition()
            capture(model, batch.microbatch_example, training=True, run=run)
        costs_of = costs_by(self._hidden["costs"])
        plan = agreed_plan(model, batch, session, costs_of, marks_of(model), run=run)
        if not session.is_decided:
            session.decide(plan.pipeline_parallel_degree)
        example = batch.split(plan.num_microbatches)[0].microbatch_example
        program = capture(model, example, training=True, opened=frozenset(plan.opened), run=run)
        placement = plan.check(graph_of(program, model))
        split = SplitKerasModel(
            model=model, session=session, plan=plan, placement=placement, program=program,
            objective=self._objective, run=run,
        )  # fmt: skip
        check_state(split)
        share_values(split)
        release_others(split)
        self._hidden["example"] = example
        run_hooks()
        return split

    def _objective(self, targets: Any, outputs: Any) -> tuple[Any, None]:
        """Return the compiled loss of one microbatch, and update the compiled metrics."""
        y, sample_weight = targets
        if self._compile_loss is None:
            loss = tf.zeros([], keras.config.floatx())
        else:
            loss = self._compile_loss(y, outputs, sample_weight)
        if self._compile_metrics is not None:
            self._compile_metrics.update_state(y, outputs, sample_weight)
        return loss, None
