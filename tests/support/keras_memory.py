# SPDX-License-Identifier: Apache-2.0
"""Large Keras models, and the peak of memory of a rank that trains one in stages."""

import gc
import re
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from keras import layers

NARROW, WIDE, PAIRS = 2048, 4096, 6
LAYER_BYTES = 4 * NARROW * WIDE


def functional() -> keras.Model:
    """Return 12 equal layers of 32 MiB, as a functional model."""
    x = inputs = layers.Input((NARROW,))
    for number in range(PAIRS):
        x = layers.Dense(WIDE, activation="tanh", use_bias=False, name=f"wide{number}")(x)
        x = layers.Dense(NARROW, activation="tanh", use_bias=False, name=f"narrow{number}")(x)
    return keras.Model(inputs, x)


class Subclassed(keras.Model):
    """Model of the layers of `functional`, which get their variables at its first call."""

    def __init__(self) -> None:
        super().__init__(name="subclassed")
        self.wide = [
            layers.Dense(WIDE, activation="tanh", use_bias=False, name=f"wide{number}")
            for number in range(PAIRS)
        ]
        self.narrow = [
            layers.Dense(NARROW, activation="tanh", use_bias=False, name=f"narrow{number}")
            for number in range(PAIRS)
        ]

    def call(self, x: Any) -> Any:
        for wide, narrow in zip(self.wide, self.narrow, strict=True):
            x = narrow(wide(x))
        return x


def batch() -> tuple[Any, Any]:
    """Return inputs and targets of four samples."""
    return tuple(np.random.default_rng(0).standard_normal((2, 4, NARROW)).astype("float32"))


def warm_up() -> None:
    """Start the threads of TensorFlow and trace a small model, so that later growth is weights."""
    small = keras.Sequential([layers.Dense(4), layers.Dense(1)])
    small.compile("sgd", "mse")
    small.train_on_batch(np.ones([4, 3]), np.ones([4, 1]))
    tf.matmul(tf.ones([256, 256]), tf.ones([256, 256]))


class Peak:
    """Growth of the memory of this process since the peak was reset."""

    def __init__(self) -> None:
        gc.collect()
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")  # resets VmHWM
        self._before = _status("VmRSS")

    def num_bytes(self) -> int:
        """Return how much more than at the beginning was resident at the peak."""
        return _status("VmHWM") - self._before


@contextmanager
def limited_growth(num_bytes: int) -> Iterator[None]:
    """Let the private memory of this process grow by so many bytes at most, in a `with` block.

    RLIMIT_DATA counts what a process may write to, unlike RLIMIT_AS, which also counts addresses
    that TensorFlow reserves and never uses. The limit ends with the block: a later use of the
    process, whose memory may not be free again yet, would fail in its start.
    """
    before = resource.getrlimit(resource.RLIMIT_DATA)
    resource.setrlimit(resource.RLIMIT_DATA, (_status("VmData") + num_bytes, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, before)


def _status(name: str) -> int:
    text = Path("/proc/self/status").read_text(encoding="ascii")
    found = re.search(rf"^{name}:\s+(\d+) kB$", text, re.MULTILINE)
    assert found is not None
    return int(found[1]) * 1024
