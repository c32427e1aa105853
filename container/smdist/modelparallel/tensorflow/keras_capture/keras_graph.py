# SPDX-License-Identifier: Apache-2.0
"""Graph of a Keras model for the partition and the planner, made from its program."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import keras
import tensorflow as tf

from smdist.modelparallel.core.graph import Graph, Node, NodeKind, Parameter, Value
from smdist.modelparallel.tensorflow.keras_capture.layer_paths import (
    all_variables,
    trained_variables,
)
from smdist.modelparallel.tensorflow.keras_capture.layer_program import (
    LayerProgram,
    ProgramStep,
    Spec,
    variables_of,
)


def graph_of(program: LayerProgram, model: Any) -> Graph:
    """Return the graph of a recorded forward pass.

    Layers are units and operations between them are glue. The variables of a layer that are not
    trained, such as the averages of BatchNormalization, are parameters, too: they have to be where
    the layer is.

    Args:
        program: Recorded forward pass.
        model: Model that was recorded.
    """
    trained = {id(each) for each in trained_variables(model)}
    nodes = [_input(name, program.specs[name]) for name in program.inputs]
    moving: set[str] = set()  # values that have a gradient
    for step in program.steps:
        variables = variables_of(step)
        has_gradient = any(id(each) in trained for each in variables) or moving & set(step.reads)
        node = _node(step, program, variables, has_gradient=bool(has_gradient))
        moving |= {value.name for value in node.writes if value.has_gradient}
        nodes.append(node)
    return Graph(
        model=program.model,
        nodes=tuple(nodes),
        outputs=tuple(dict.fromkeys([*program.results])),
        parameters=tuple(
            _parameter(each, program.variable_names, is_trained=id(each) in trained)
            for each in all_variables(model)
        ),
    )


def bytes_of(spec: Spec) -> int:
    """Return the bytes of a value."""
    return math.prod(spec.shape) * int(tf.as_dtype(spec.dtype).size)


def _input(name: str, spec: Spec) -> Node:
    return Node(
        name=name, kind=NodeKind.INPUT, module="", writes=(_value(name, spec, has_gradient=False),)
    )


def _value(name: str, spec: Spec, *, has_gradient: bool) -> Value:
    return Value(
        name=name,
        shape=spec.shape,
        dtype=spec.dtype,
        num_bytes=bytes_of(spec),
        has_gradient=has_gradient and keras.backend.is_float_dtype(spec.dtype),
    )


def _node(
    step: ProgramStep, program: LayerProgram, variables: list[Any], *, has_gradient: bool
) -> Node:
    seeds = {id(each) for each in _seed_states(step.operation)} if step.is_layer else set()
    state = [each for each in variables if not _is_weight(each) and id(each) not in seeds]
    return Node(
        name=step.name,
        kind=NodeKind.UNIT if step.is_layer else NodeKind.GLUE,
        module=step.module,
        reads=step.reads,
        writes=tuple(
            _value(name, program.specs[name], has_gradient=has_gradient)
            for name in (*step.writes, *step.new_masks)
        ),
        parameters=tuple(program.variable_names[id(each)] for each in variables),
        is_random=bool(seeds),
        has_state=step.is_layer and (bool(state) or _adds_losses(step.operation)),
        type=type(step.operation).__name__,
    )


def _is_weight(variable: Any) -> bool:
    """Tell whether a variable was made to be trained, even if it is frozen now."""
    return bool(variable._trainable) or bool(variable.trainable)


def _seed_states(layer: Any) -> list[Any]:
    """Return the states of all random generators in a layer."""
    return [
        generator.state
        for each in layer._flatten_layers(include_self=True, recursive=True)
        for generator in each._seed_generators
    ]


def _adds_losses(layer: Any) -> bool:
    return any(
        each.activity_regularizer is not None
        for each in layer._flatten_layers(include_self=True, recursive=True)
    )


def _parameter(variable: Any, names: Mapping[int, str], *, is_trained: bool) -> Parameter:
    spec = Spec(shape=tuple(variable.shape), dtype=str(variable.dtype))
    return Parameter(
        name=names[id(variable)],
        shape=spec.shape,
        dtype=spec.dtype,
        num_elements=math.prod(spec.shape),
        num_bytes=bytes_of(spec),
        is_trained=is_trained,
    )
