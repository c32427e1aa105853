# SPDX-License-Identifier: Apache-2.0
"""Masks of a program: which mask each step sees on the values that it reads.

Keras attaches a mask to a tensor as an attribute. A layer sets it on its results, and some layers
remove it from their arguments, so what a step sees depends on all steps before it. This module runs
the whole program once on tensors of a graph, without computing anything, and writes down each mask
as a value of the step after which it first appears. So a mask can be sent to another stage.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import keras
import tensorflow as tf

from smdist.modelparallel.tensorflow.keras_capture.layer_program import (
    LayerProgram,
    ProgramStep,
    Spec,
    mask_of,
    run_step,
    set_mask,
)


def with_masks(program: LayerProgram) -> LayerProgram:
    """Return the program with the masks that its steps read and write."""
    names: dict[int, str] = {}  # name of each mask, by id()
    kept: list[Any] = []  # masks stay alive, so that no id() is used twice
    specs = dict(program.specs)
    steps: list[ProgramStep] = []
    masks: dict[str, str] = {}

    def trace(*inputs: Any) -> None:
        found = dict(zip(program.inputs, inputs, strict=True))
        for each in inputs:
            set_mask(each, None)
        for step in program.steps:
            seen = {name: names.get(id(mask_of(found[name])), "") for name in step.reads}
            _call(step, found)
            made = _new_masks(step, found, names, kept)
            specs.update({name: _spec(found[value]) for name, value in made.items()})
            steps.append(_with(step, seen, made))
        for name in program.output_names:
            if id(mask_of(found[name])) in names:
                masks[name] = names[id(mask_of(found[name]))]

    function = tf.function(tf.autograph.experimental.do_not_convert(trace))
    function.get_concrete_function(*(_tensor_spec(specs[name]) for name in program.inputs))
    return replace(program, steps=tuple(steps), specs=specs, masks=masks)


def _call(step: ProgramStep, found: dict[str, Any]) -> None:
    run_step(step, found)
    if step.is_layer:
        for layer in step.operation._flatten_layers(include_self=True, recursive=True):
            layer._clear_losses()


def _new_masks(
    step: ProgramStep, found: Mapping[str, Any], names: dict[int, str], kept: list[Any]
) -> dict[str, str]:
    """Return the names of masks that appear with a step, each with the result that has it."""
    made = {}
    for value in step.writes:
        mask = mask_of(found[value])
        if mask is not None and id(mask) not in names:
            names[id(mask)] = f"{value}.mask"
            made[f"{value}.mask"] = value
            kept.append(mask)
    return made


def _with(step: ProgramStep, seen: Mapping[str, str], made: Mapping[str, str]) -> ProgramStep:
    reads = dict.fromkeys([*step.reads, *filter(None, seen.values())])
    return replace(step, reads=tuple(reads), seen_masks=dict(seen), new_masks=dict(made))


def _tensor_spec(spec: Spec) -> Any:
    return tf.TensorSpec(spec.shape, spec.dtype)


def _spec(value: Any) -> Spec:
    mask = mask_of(value)
    shape = [given or own for given, own in zip(mask.shape.as_list(), value.shape, strict=False)]
    return Spec(shape=tuple(shape), dtype=keras.backend.standardize_dtype(mask.dtype))
