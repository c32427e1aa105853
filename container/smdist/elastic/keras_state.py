# SPDX-License-Identifier: Apache-2.0
"""State of an elastic training with Keras: model, optimizer, sampler."""

from __future__ import annotations

import json
from typing import Any

import keras
import numpy as np

from sagemaker_dist.errors import OptionError
from smdist.dataparallel.tensorflow import basics, collectives
from smdist.dataparallel.tensorflow.op_library import tf
from smdist.elastic.elastic_sampler import ElasticSampler
from smdist.elastic.framework_world import FrameworkWorld
from smdist.elastic.keras_world import KerasWorld
from smdist.elastic.state import State

_FUNCTIONS = ("train_function", "test_function", "predict_function")  # compiled by Keras


class KerasState(State):
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

    def world(self) -> FrameworkWorld:
        """Return the ranks that init() has connected."""
        return KerasWorld()

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

    def _copy_content(self) -> list[Any]:
        return [np.array(variable) for variable in self._variables]

    def _load_content(self, content: list[Any]) -> None:
        for variable, value in zip(self._variables, content, strict=True):
            variable.assign(value)
        for name in _FUNCTIONS:
            if hasattr(self.model, name):
                setattr(self.model, name, None)  # traced for the number of ranks of a former world

    def _broadcast(self, committed: dict[str, Any]) -> dict[str, Any]:
        if basics.rank() == 0:
            arrays = committed["content"]
            places = [[list(each.shape), each.dtype.name] for each in arrays]
            head = json.dumps({**committed, "content": places}).encode()
            _send(np.frombuffer(head, np.uint8))
            _send(np.concatenate([_bytes_of(each) for each in arrays]))
            return committed
        received: dict[str, Any] = json.loads(_receive().tobytes())
        data, arrays, start = _receive(), [], 0
        for shape, name in received["content"]:
            dtype = tf.as_dtype(name).as_numpy_dtype
            end = start + int(np.prod(shape)) * np.dtype(dtype).itemsize
            arrays.append(data[start:end].copy().view(dtype).reshape(shape))
            start = end
        return {**received, "content": arrays}


def _bytes_of(array: Any) -> Any:
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8)


def _send(data: Any) -> None:
    collectives.broadcast(tf.constant([len(data)], tf.int64), 0)
    collectives.broadcast(tf.constant(data), 0)


def _receive() -> Any:
    length = int(collectives.broadcast(tf.zeros([1], tf.int64), 0)[0])
    return collectives.broadcast(tf.zeros([length], tf.uint8), 0).numpy()
