# SPDX-License-Identifier: Apache-2.0
"""State of an elastic training with Keras: model, optimizer, sampler."""

from __future__ import annotations

from typing import Any

import keras

from sagemaker_dist.errors import OptionError
from smdist.elastic.elastic_sampler import ElasticSampler
from smdist.elastic.variables_state import VariablesState

_FUNCTIONS = ("train_function", "test_function", "predict_function")  # compiled by Keras


class KerasState(VariablesState):
    """State of a training with Keras, by model.fit or by a loop of the script.

        state = KerasState(model, sampler=sampler, epoch=0)

    A commit copies all weights and the variables of the optimizer into the host's memory. After a
    change of the world, model.fit compiles its functions anew.

    Args:
        model: A model that is built.
        optimizer: Its optimizer. Default None: the one of model.compile.
        sampler: The sampler of the training data, or None. Default None.
        values: Further values such as `epoch=0`: numbers, texts, lists and dicts of these. Each is
            an attribute of the state.

    Raises:
        OptionError: The model is not built or has no optimizer, or a value has the name of an
            attribute of the state, or is of another type.
    """

    def __init__(
        self,
        model: Any,
        optimizer: Any = None,
        *,
        sampler: ElasticSampler | None = None,
        **values: Any,
    ) -> None:
        self.model = model
        self.optimizer: Any = optimizer or getattr(model, "optimizer", None)
        if not model.built or self.optimizer is None:
            missing = "optimizer" if model.built else "weights"
            raise OptionError(
                f"the model {model.name!r} has no {missing}",
                "the state of the training consists of weights and optimizer",
                "Call model.build() or pass an Input, and pass the optimizer or call"
                " model.compile(), before KerasState()",
                about="model" if missing == "weights" else "optimizer",
                kind="missing",
            )
        if not self.optimizer.built:
            self.optimizer.build(model.trainable_variables)
        super().__init__(sampler, values)

    def scaling_fault(self) -> OptionError | None:
        """Return the reason why the learning rate cannot be scaled: it follows a schedule."""
        schedule = keras.optimizers.schedules.LearningRateSchedule
        inner = getattr(self.optimizer, "inner_optimizer", self.optimizer)
        if not isinstance(inner._learning_rate, schedule):
            return None
        return OptionError(
            f"the optimizer {self.optimizer.name!r} has a LearningRateSchedule",
            "Keras does not let it be changed, so scale_linearly cannot scale the learning rate"
            " when a host is lost",
            "Pass on_reset= to smdist.elastic.run, a function that makes a new optimizer or does"
            " nothing; or set the rate by a callback of model.fit",
            about="on_reset",
            kind="unsupported",
        )

    def scale_learning_rate(self, factor: float) -> None:
        """Multiply the learning rate by `factor`.

        Raises:
            OptionError: The optimizer has a LearningRateSchedule, which Keras cannot change.
        """
        fault = self.scaling_fault()
        if fault is not None:
            raise fault
        self.optimizer.learning_rate = float(self.optimizer.learning_rate) * factor

    @property
    def _variables(self) -> list[Any]:
        return [*self.model.weights, *self.optimizer.variables]

    def _load_content(self, content: list[Any]) -> None:
        super()._load_content(content)
        for name in _FUNCTIONS:
            if hasattr(self.model, name):
                setattr(self.model, name, None)  # traced for the number of ranks of a former world
