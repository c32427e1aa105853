# SPDX-License-Identifier: Apache-2.0
"""State of an elastic training that consists of variables of TensorFlow."""

from __future__ import annotations

import json
from abc import abstractmethod
from typing import Any

import numpy as np

from smdist.dataparallel.tensorflow import basics, collectives
from smdist.dataparallel.tensorflow.op_library import tf
from smdist.elastic.framework_world import FrameworkWorld
from smdist.elastic.keras_world import KerasWorld
from smdist.elastic.state import State


class VariablesState(State):
    """Base class of states of variables, whose values a commit copies into the host's memory."""

    def world(self) -> FrameworkWorld:
        """Return the ranks that init() has connected."""
        return KerasWorld()

    @property
    @abstractmethod
    def _variables(self) -> list[Any]:
        """Variables of the state, in the same order on all ranks."""

    def _copy_content(self) -> list[Any]:
        return [np.array(variable) for variable in self._variables]

    def _load_content(self, content: list[Any]) -> None:
        for variable, value in zip(self._variables, content, strict=True):
            variable.assign(value)

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
