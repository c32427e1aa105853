# SPDX-License-Identifier: Apache-2.0
"""Capture of a Keras model: its forward pass as a program of layers, from one symbolic run.

Functional and sequential models, also nested ones, are recorded layer by layer. The call() of a
subclassed model runs once on symbolic tensors; each layer that it calls becomes a unit, and each
operation of keras.ops between layers becomes glue. What cannot be recorded is refused with the
name of the layer.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import keras

from smdist.modelparallel.tensorflow.keras_capture.capture_error import KerasCaptureError
from smdist.modelparallel.tensorflow.keras_capture.delayed_values import (
    delay_param_initialization,
)
from smdist.modelparallel.tensorflow.keras_capture.layer_paths import (
    layer_paths,
    trained_variables,
    unique,
    variable_names,
)
from smdist.modelparallel.tensorflow.keras_capture.layer_program import (
    LayerProgram,
    ProgramStep,
    Spec,
    ValueName,
    mask_of,
)
from smdist.modelparallel.tensorflow.keras_capture.mask_trace import with_masks
from smdist.modelparallel.tensorflow.keras_capture.recording import RecordedCall, Recording


def capture(
    model: Any, example: Any, *, training: bool, opened: frozenset[str] = frozenset(),
    run: Any = None,
) -> LayerProgram:  # fmt: skip
    """Record the forward pass of a Keras model for one microbatch.

    Args:
        model: The model. Layers that are not built yet are built, and their variables are delayed.
        example: Inputs of one microbatch, in the structure that the model takes: tensors, or
            anything with a shape and a dtype. The values do not matter.
        training: True for the forward pass of training, False for that of inference.
        opened: Paths of subclassed layers that are divided into the layers within them.
        run: Function that is called in place of the model.

    Raises:
        KerasCaptureError: The model does something between layers that cannot be recorded.
    """
    inputs = keras.tree.map_structure(_symbol, example)
    paths = layer_paths(model)

    def is_open(layer: Any) -> bool:
        return layer is model or _is_plain_graph(layer) or paths.get(id(layer)) in opened

    def path_of(layer: Any) -> str:
        if id(layer) not in paths:  # built during the run
            paths.update({k: v for k, v in layer_paths(model).items() if k not in paths})
        return paths.get(id(layer), str(layer.name))

    recording = Recording(is_open=is_open, path_of=path_of)
    _refuse_activity_regularizers(model, is_open)
    with recording.active(), delay_param_initialization():
        outputs = _run(run or model, model, inputs, training, recording)
        program = _program(model, recording, path_of, inputs, outputs, training)
        results = [each for call in recording.calls for each in call.outputs]
        has_masks = any(mask_of(each) is not None for each in results)
        return with_masks(program) if has_masks else program


def _is_plain_graph(layer: Any) -> bool:
    """Tell whether a layer is a functional or sequential model whose call() is Keras's own."""
    for kind in (keras.Sequential, _functional_class()):
        if isinstance(layer, kind):
            return type(layer).call is kind.call
    return False


def _functional_class() -> Any:
    from keras.src.models.functional import Functional

    return Functional


def _symbol(value: Any) -> Any:
    shape = tuple(value.shape)
    return keras.KerasTensor(shape, dtype=keras.backend.standardize_dtype(value.dtype))


def _run(run: Any, model: Any, inputs: Any, training: bool, recording: Recording) -> Any:
    """Run the model on symbolic inputs, with errors translated."""
    options = {"training": training} if model._call_has_training_arg else {}
    try:
        return run(inputs, **options)
    except KerasCaptureError:
        raise
    except Exception as error:
        if recording.refused is not None:
            raise _refused_shape(*recording.refused, inputs) from error
        raise KerasCaptureError(
            f"the call() of {type(model).__name__} cannot be recorded",
            f"{type(error).__name__}: {error}",
            "Between layers use operations of keras.ops, and no branches that depend on values of"
            " tensors; or move this code into the call() of a layer",
            about="model",
            kind="not_symbolic",
        ) from error


def _refused_shape(layer: str, text: str, inputs: Any) -> KerasCaptureError:
    shapes = ", ".join(str(tuple(each.shape)) for each in keras.tree.flatten(inputs))
    return KerasCaptureError(
        f"layer {layer!r} does not take data of this shape",
        f"{text}; the inputs of a microbatch have the shapes {shapes}",
        "Pass data of the shape that the model was made for; a batch size that the model fixes is"
        " the one of a microbatch",
        about=("inputs", layer),
        kind="shape",
    )


def _refuse_activity_regularizers(model: Any, is_open: Any) -> None:
    for layer in model._flatten_layers(include_self=True, recursive=True):
        if is_open(layer) and layer.activity_regularizer is not None:
            raise KerasCaptureError(
                f"the model {layer.name!r} has an activity_regularizer",
                "its layers may be on several stages, and none of them has all its outputs",
                "Pass the regularizer to the last layer of this model",
                about="activity_regularizer",
                kind="unsupported",
            )


def _program(
    model: Any, recording: Recording, path_of: Any, inputs: Any, outputs: Any, training: bool
) -> LayerProgram:  # fmt: skip
    names: dict[int, str] = {}
    specs: dict[str, Spec] = {}
    taken: set[str] = set()
    flat_inputs = keras.tree.flatten(inputs)
    for number, each in enumerate(flat_inputs):
        names[id(each)] = f"input.{number}"
        specs[f"input.{number}"] = _spec(each, f"input {number}")
    steps = []
    for call in recording.calls:
        step = _step(call, path_of, names, taken)
        for name, each in zip(step.writes, call.outputs, strict=True):
            names[id(each)] = name
            specs[name] = _spec(each, step.name)
        steps.append(step)
    found = keras.tree.map_structure(lambda each: _named(each, names, model), outputs)
    variables = variable_names(model)
    from_losses = {names[id(each)] for each in recording.losses}
    _refuse_lost_variables(model, recording, variables)
    return LayerProgram(
        model=type(model).__name__,
        steps=tuple(_needed(steps, from_losses | set(_names_in(found)))),
        inputs=tuple(names[id(each)] for each in flat_inputs),
        outputs=found,
        losses=tuple(names[id(each)] for each in recording.losses),
        specs=specs,
        variable_names=variables,
        training=training,
    )


def _names_in(outputs: Any) -> list[str]:
    return [each.name for each in keras.tree.flatten(outputs)]


def _needed(steps: list[ProgramStep], wanted: set[str]) -> list[ProgramStep]:
    """Return the steps without operations that nobody reads, such as those of symbolic masks."""
    wanted, found = set(wanted), []
    for step in reversed(steps):
        if step.is_layer or wanted & set(step.writes):
            wanted |= set(step.reads)
            found.append(step)
    return found[::-1]


def _step(
    call: RecordedCall, path_of: Any, names: Mapping[int, str], taken: set[str]
) -> ProgramStep:
    """Return a recorded call as a step, with names in place of symbolic tensors."""
    is_layer = isinstance(call.operation, keras.Layer)
    module = path_of(call.operation) if is_layer else call.parent
    inside = f"{call.parent}." if call.parent else ""
    base = module if is_layer else f"{inside}{_kind_of(call.operation)}"
    name = unique(base, taken)
    reads: list[str] = []

    def replaced(each: Any) -> Any:
        if not isinstance(each, keras.KerasTensor):
            return each
        if id(each) not in names:
            raise KerasCaptureError(
                f"{name!r} reads a tensor that this run did not compute",
                "the tensor was kept from an earlier call of the model",
                "Compute the tensor in the call() that uses it",
                about=name,
                kind="foreign_tensor",
            )
        reads.append(names[id(each)])
        return ValueName(names[id(each)])

    args, kwargs = keras.tree.map_structure(replaced, (call.args, call.kwargs))
    return ProgramStep(
        name=name,
        module=module,
        operation=call.operation,
        args=tuple(args),
        kwargs=kwargs,
        reads=tuple(dict.fromkeys(reads)),
        writes=tuple(f"{name}.{number}" for number in range(len(call.outputs))),
    )


def _kind_of(operation: Any) -> str:
    """Return the name of an operation's class as in keras.ops: "get_item" for GetItem."""
    return re.sub("(?<=[a-z0-9])(?=[A-Z])", "_", type(operation).__name__).lower()


def _named(each: Any, names: Mapping[int, str], model: Any) -> ValueName:
    if id(each) in names:
        return ValueName(names[id(each)])
    raise KerasCaptureError(
        f"{type(model).__name__} returns {type(each).__name__}, which is no result of a layer",
        "the model's outputs have to be computed from its inputs",
        "Return tensors that layers or operations of keras.ops compute",
        about="model",
        kind="not_a_tensor",
    )


def _spec(tensor: Any, name: str) -> Spec:
    shape = tuple(tensor.shape)
    if None in shape:
        raise KerasCaptureError(
            f"{name!r} computes a tensor of shape {shape}",
            "a stage can receive only tensors whose shape does not depend on values",
            "Give the tensor a fixed shape, or compute it inside of one layer",
            about=name,
            kind="unknown_shape",
        )
    return Spec(shape=shape, dtype=str(tensor.dtype))


def _refuse_lost_variables(model: Any, recording: Recording, names: Mapping[int, str]) -> None:
    """Check that no gradient is lost because call() read the value of a variable itself."""
    trained = {id(each) for each in trained_variables(model)}
    lost = [names[id(each)] for each in recording.read if id(each) in trained]
    if lost:
        raise KerasCaptureError(
            f"the call() of {type(model).__name__} reads the value of {lost[0]!r}",
            "the run recorded a constant in place of the variable, which would not be trained",
            "Use the variable in an operation of keras.ops, such as keras.ops.take, or in a layer",
            about=lost[0],
            kind="lost_variable",
        )
