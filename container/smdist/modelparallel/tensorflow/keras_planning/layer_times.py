# SPDX-License-Identifier: Apache-2.0
"""Measured costs of layers: each kind of layer is run alone, forward and backward.

Two layers are of one kind if class, configuration and shapes are equal; such layers are measured
once. Delayed variables have values only while their layer is run. A layer that cannot be run alone
gets its estimated cost, in proportion to the measured ones.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Any, Final

import keras
import numpy as np
import tensorflow as tf

from smdist.modelparallel.core.cost import Costs, NodeCost
from smdist.modelparallel.tensorflow.keras_capture.delayed_values import lent_values
from smdist.modelparallel.tensorflow.keras_capture.layer_program import (
    LayerProgram,
    ProgramStep,
    ValueName,
    variables_of,
)
from smdist.modelparallel.tensorflow.keras_planning.layer_estimates import add_loss, estimated

_RUNS: Final = (3, 20)  # fewest and most runs of a layer; the fastest counts
_RUN_SECONDS: Final = 0.05  # after so long, there are no more runs than the fewest
_BUDGET_SECONDS: Final = 60.0  # for all measurements; further layers get estimated costs


def measure(program: LayerProgram, tick: Callable[[], None] = lambda: None) -> Costs:
    """Return costs of all layers of a program, each kind of which is run on this rank.

    Args:
        program: Program of the model.
        tick: Function that is called before each measurement, which may take seconds.
    """
    end = time.monotonic() + _BUDGET_SECONDS
    known: dict[str, NodeCost | None] = {}
    guessed: dict[str, NodeCost] = {}
    found: dict[str, NodeCost] = {}
    empty_seconds = _seconds(lambda: [tf.zeros([])])
    for step in program.steps:
        rough = estimated(step, program)
        kind = _kind(step, program)
        if step.is_layer and kind not in known and time.monotonic() < end:
            tick()
            known[kind] = _measured(step, program, rough, empty_seconds)
        cost = known.get(kind)
        if cost is None:
            guessed[step.name] = rough
        else:
            found[step.name] = cost
    factor = _speed(program, found)
    nodes = {**found, **{name: _scaled(cost, factor) for name, cost in guessed.items()}}
    add_loss(nodes, program, factor=factor)
    return Costs(nodes=nodes, source="measured", device="cpu")


def _kind(step: ProgramStep, program: LayerProgram) -> str:
    """Return a text that is equal for layers that take the same time."""
    if not step.is_layer:
        return f"operation {step.name}"
    config = dict(step.operation.get_config()) if _has_config(step.operation) else {}
    config.pop("name", None)
    shapes = [(program.specs[name].shape, program.specs[name].dtype) for name in step.reads]
    trained = [(tuple(each.shape), each.trainable) for each in variables_of(step)]
    own = "" if config else step.name
    return json.dumps([type(step.operation).__name__, own, config, shapes, trained], default=str)


def _has_config(layer: Any) -> bool:
    try:
        layer.get_config()
    except Exception:  # a user's layer may lack it, for many reasons
        return False
    return True


def _measured(
    step: ProgramStep, program: LayerProgram, rough: NodeCost, empty_seconds: float
) -> NodeCost | None:
    """Return the cost of one layer; None if it cannot be run alone.

    Args:
        step: Call of the layer.
        program: Program of the model.
        rough: Estimated cost.
        empty_seconds: Time of a call that computes nothing, which is no cost of a layer.
    """
    with lent_values(variables_of(step)):
        return _measured_with_values(step, program, rough, empty_seconds)


def _measured_with_values(
    step: ProgramStep, program: LayerProgram, rough: NodeCost, empty_seconds: float
) -> NodeCost | None:
    state = [(each, each.numpy()) for each in variables_of(step) if not each.trainable]
    try:
        return _timed(step, program, rough, empty_seconds)
    except Exception:  # any error: a layer may fail when it is called alone
        return None
    finally:
        for variable, value in state:
            variable.assign(value)
        for layer in step.operation._flatten_layers(include_self=True, recursive=True):
            layer._clear_losses()


def _timed(
    step: ProgramStep, program: LayerProgram, rough: NodeCost, empty_seconds: float
) -> NodeCost:
    inputs = {name: _sample(program, name) for name in step.reads}
    weights = [each.value for each in variables_of(step) if each.trainable]
    floats = [value for value in inputs.values() if value.dtype.is_floating]

    def forward() -> list[Any]:
        def filled(each: Any) -> Any:
            return inputs[each.name] if isinstance(each, ValueName) else each

        args, kwargs = keras.tree.map_structure(filled, (step.args, dict(step.kwargs)))
        return [tf.convert_to_tensor(each) for each in keras.tree.flatten(
            step.operation(*args, **kwargs))]  # fmt: skip

    def gradients(sources: list[Any]) -> list[Any]:
        with tf.GradientTape() as tape:
            tape.watch(floats)
            results = [each for each in forward() if each.dtype.is_floating]
        found = tape.gradient(results, sources) if sources and results else []
        return [*results, *(_added(each) for each in found if each is not None)]

    forward_seconds = max(_seconds(forward) - empty_seconds, 0.0)
    whole = max(_seconds(lambda: gradients([*floats, *weights])) - empty_seconds, 0.0)
    both = max(whole - forward_seconds, 0.0)
    has_both = bool(floats) and bool(weights)
    return NodeCost(
        forward_seconds=forward_seconds,
        input_gradient_seconds=both / 2 if has_both else both * bool(floats),
        weight_gradient_seconds=both / 2 if has_both else both * (not floats),
        saved_bytes=rough.saved_bytes,
    )


def _added(gradient: Any) -> Any:
    """Return a sum of a gradient and another tensor, as microbatches add them; rows stay rows."""
    return gradient.values if isinstance(gradient, tf.IndexedSlices) else gradient + gradient


def _sample(program: LayerProgram, name: str) -> Any:
    spec = program.specs[name]
    dtype = tf.as_dtype(spec.dtype)
    if dtype.is_floating:
        return tf.constant(np.random.default_rng(0).standard_normal(spec.shape), dtype)
    return tf.ones(spec.shape, dtype) if dtype.is_bool else tf.zeros(spec.shape, dtype)


def _seconds(run: Callable[[], Any]) -> float:
    compiled = tf.function(tf.autograph.experimental.do_not_convert(run))
    compiled()
    fewest, most = _RUNS
    taken: list[float] = []
    while len(taken) < fewest or (len(taken) < most and sum(taken) < _RUN_SECONDS):
        begin = time.perf_counter()
        compiled()  # a CPU has finished when the call returns
        taken.append(time.perf_counter() - begin)
    return min(taken)


def _speed(program: LayerProgram, found: dict[str, NodeCost]) -> float:
    """Return how much longer the measured layers took than estimated."""
    rough = sum(estimated(step, program).seconds for step in program.steps if step.name in found)
    return sum(cost.seconds for cost in found.values()) / rough if rough else 1.0


def _scaled(cost: NodeCost, factor: float) -> NodeCost:
    return NodeCost(
        forward_seconds=cost.forward_seconds * factor,
        input_gradient_seconds=cost.input_gradient_seconds * factor,
        weight_gradient_seconds=cost.weight_gradient_seconds * factor,
        saved_bytes=cost.saved_bytes,
    )
