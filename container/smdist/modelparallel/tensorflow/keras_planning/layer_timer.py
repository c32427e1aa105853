# SPDX-License-Identifier: Apache-2.0
"""Times of one layer that runs alone, forward and backward: the least of its runs count.

A run of a small layer takes less than a time slice of the operating system, so that another process
may slow down all runs that follow each other. Runs of different layers are therefore interleaved: a
timer keeps its compiled functions, and adds a run whenever `run_once` is called.

A run takes its wall time or its processor time, whichever is less. Processor time does not grow
while other processes have the core, which on a busy host is most of the wall time. Wall time is
less where several threads share the work of a layer.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from smdist.modelparallel.tensorflow.keras_capture.layer_program import (
    LayerProgram,
    ProgramStep,
    ValueName,
    variables_of,
)


@dataclass(slots=True)
class FunctionTimer:
    """Least time of the runs of a compiled function.

    Attributes:
        function: Function of TensorFlow without arguments.
        seconds: Least wall or processor time of a run so far.
    """

    function: Callable[[], Any]
    seconds: float = float("inf")

    @classmethod
    def of(cls, run: Callable[[], Any]) -> FunctionTimer:
        """Compile a function, and run it once without counting."""
        compiled = tf.function(tf.autograph.experimental.do_not_convert(run))
        compiled()
        return cls(compiled)

    def run_once(self) -> float:
        """Run the function once more, and return the wall time of this run in seconds."""
        begin, used = time.perf_counter(), time.process_time()
        self.function()  # a CPU has finished when the call returns
        processor_seconds = time.process_time() - used
        taken = time.perf_counter() - begin
        self.seconds = min(self.seconds, taken, processor_seconds)
        return taken

    def run(self, fewest: int, most: int = 0, enough_seconds: float = 0.0) -> None:
        """Run the function `fewest` times, and up to `most` times while that is below a time."""
        total, count = 0.0, 0
        while count < fewest or (count < most and total < enough_seconds):
            total += self.run_once()
            count += 1


@dataclass(slots=True)
class LayerTimer:
    """Forward and backward pass of one layer.

    Attributes:
        forward: Forward pass.
        whole: Forward and backward pass.
        gradients_of_inputs: True if inputs have gradients.
        gradients_of_weights: True if weights have gradients.
        num_bytes: Bytes of the inputs and variables, which the timer keeps.
    """

    forward: FunctionTimer
    whole: FunctionTimer
    gradients_of_inputs: bool
    gradients_of_weights: bool
    num_bytes: int
    _layer: Any
    _state: list[tuple[Any, Any]] = field(default_factory=list)

    @classmethod
    def of(cls, step: ProgramStep, program: LayerProgram) -> LayerTimer:
        """Return a timer of a layer whose variables have values; call `restore` after its runs."""
        inputs = {name: _sample(program, name) for name in step.reads}
        variables = variables_of(step)
        weights = [each.value for each in variables if each.trainable]
        floats = [value for value in inputs.values() if value.dtype.is_floating]
        state = [(each, each.numpy()) for each in variables if not each.trainable]

        def forward() -> list[Any]:
            def filled(each: Any) -> Any:
                return inputs[each.name] if isinstance(each, ValueName) else each

            args, kwargs = keras.tree.map_structure(filled, (step.args, dict(step.kwargs)))
            results = keras.tree.flatten(step.operation(*args, **kwargs))
            return [tf.convert_to_tensor(each) for each in results]

        def gradients() -> list[Any]:
            sources = [*floats, *weights]
            with tf.GradientTape() as tape:
                tape.watch(floats)
                results = [each for each in forward() if each.dtype.is_floating]
            found = tape.gradient(results, sources) if sources and results else []
            return [*results, *(_added(each) for each in found if each is not None)]

        kept = [*inputs.values(), *(each.value for each in variables)]
        try:
            return cls(
                FunctionTimer.of(forward), FunctionTimer.of(gradients), bool(floats), bool(weights),
                sum(each.dtype.size * (each.shape.num_elements() or 0) for each in kept),
                step.operation, state,
            )  # fmt: skip
        except BaseException:
            _restore(step.operation, state)
            raise

    @property
    def seconds(self) -> float:
        """Least time of a forward run and of a run of both passes, added."""
        return self.forward.seconds + self.whole.seconds

    def run_once(self) -> None:
        """Run both functions once more."""
        self.forward.run_once()
        self.whole.run_once()

    def run(self, fewest: int, most: int = 0, enough_seconds: float = 0.0) -> None:
        """Run each function `fewest` times, and up to `most` times while that is below a time."""
        for timer in (self.forward, self.whole):
            timer.run(fewest, most, enough_seconds)

    def drop(self) -> None:
        """Free the functions with their inputs; the times stay."""
        self.forward.function = self.whole.function = _no_function
        self._state = []

    def restore(self) -> None:
        """Give the layer's states the values that they had, and forget the losses of the runs."""
        _restore(self._layer, self._state)


def _no_function() -> None:
    """Stand for a function that was dropped."""


def _restore(layer: Any, state: list[tuple[Any, Any]]) -> None:
    for variable, value in state:
        variable.assign(value)
    for each in layer._flatten_layers(include_self=True, recursive=True):
        each._clear_losses()


def _added(gradient: Any) -> Any:
    """Return a sum of a gradient and another tensor, as microbatches add them; rows stay rows."""
    return gradient.values if isinstance(gradient, tf.IndexedSlices) else gradient + gradient


def _sample(program: LayerProgram, name: str) -> Any:
    spec = program.specs[name]
    dtype = tf.as_dtype(spec.dtype)
    if dtype.is_floating:
        return tf.constant(np.random.default_rng(0).standard_normal(spec.shape), dtype)
    return tf.ones(spec.shape, dtype) if dtype.is_bool else tf.zeros(spec.shape, dtype)
