# SPDX-License-Identifier: Apache-2.0
"""Program of a Keras model: the calls of layers and operations that its forward pass consists of.

    step dense      dense(x.0)            -> dense.0
    step add        add(dense.0, x.0)     -> add.0
    step dense@2    dense(add.0)          -> dense@2.0

A program is what one symbolic run of the model recorded. Each stage runs a part of its steps.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import keras


@dataclass(frozen=True, slots=True)
class ValueName:
    """Placeholder in the arguments of a step for the value with this name."""

    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgramStep:
    """Call of one layer or operation.

    Attributes:
        name: Name that is unique in the program. A layer has its path in the model; "@2" is
            appended for its second call.
        module: Path of the layer, or of the model whose call() contains the operation.
        operation: Layer or operation of Keras.
        args: Positional arguments, with a `ValueName` for each tensor.
        kwargs: Keyword arguments, like `args`.
        reads: Names of the values in the arguments and of their masks, without repetitions.
        writes: Names of the results, flattened.
        seen_masks: Name of the mask that each value of the arguments has, "" for none; empty for
            all steps if the program has no masks.
        new_masks: Names of masks that appear with this step, each with the result that has it.
    """

    name: str
    module: str
    operation: Any
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    reads: tuple[str, ...]
    writes: tuple[str, ...]
    seen_masks: Mapping[str, str] = field(default_factory=dict)
    new_masks: Mapping[str, str] = field(default_factory=dict)

    @property
    def is_layer(self) -> bool:
        """True for a layer, False for an operation such as keras.ops.add."""
        return isinstance(self.operation, keras.Layer)


@dataclass(frozen=True, slots=True, kw_only=True)
class Spec:
    """Shape and dtype of a value for one microbatch; the dtype is Keras's name, as "float32"."""

    shape: tuple[int, ...]
    dtype: str


@dataclass(frozen=True, kw_only=True)
class LayerProgram:
    """Forward pass of a Keras model for one microbatch, in training or in inference.

    Attributes:
        model: Class of the model, shown in reports.
        steps: Calls in the order in which they were recorded.
        inputs: Names of the model's inputs, flattened.
        outputs: What the model returns, with a `ValueName` for each tensor.
        masks: Name of the mask of an output, by the output's name, for outputs that have one.
        losses: Names of scalars that the model's own call() passed to add_loss().
        specs: Shape and dtype of each value, by name.
        variable_names: Unique name of each variable of the model, by id().
        training: True if the program is that of training.
    """

    model: str
    steps: tuple[ProgramStep, ...]
    inputs: tuple[str, ...]
    outputs: Any
    masks: Mapping[str, str] = field(default_factory=dict)
    losses: tuple[str, ...] = ()
    specs: Mapping[str, Spec]
    variable_names: Mapping[int, str]
    training: bool

    @property
    def output_names(self) -> tuple[str, ...]:
        """Names of the values that the model returns, flattened."""
        return tuple(each.name for each in keras.tree.flatten(self.outputs))

    @property
    def results(self) -> tuple[str, ...]:
        """Names of all values that the last stage needs: outputs, and the masks of outputs."""
        return tuple(dict.fromkeys([*self.output_names, *self.masks.values()]))


def mask_of(tensor: Any) -> Any:
    """Return the mask that Keras attached to a tensor, or None."""
    return getattr(tensor, "_keras_mask", None)


def set_mask(tensor: Any, mask: Any) -> None:
    """Attach a mask to a tensor, or remove it with None."""
    tensor._keras_mask = mask


def run_step(step: ProgramStep, found: dict[str, Any]) -> None:
    """Call the layer or operation of a step.

    Args:
        step: Step of a program.
        found: Values and masks by name; gets the results.
    """

    def filled(each: Any) -> Any:
        return found[each.name] if isinstance(each, ValueName) else each

    for name, mask in step.seen_masks.items():
        set_mask(found[name], found[mask] if mask else None)
    args, kwargs = keras.tree.map_structure(filled, (step.args, dict(step.kwargs)))
    outputs = step.operation(*args, **kwargs)
    for name, value in zip(step.writes, keras.tree.flatten(outputs), strict=True):
        found[name] = value
    for name, value in step.new_masks.items():
        found[name] = mask_of(found[value])


def variables_of(step: ProgramStep) -> list[Any]:
    """Return the variables that a step uses: those of its layer, or those in its arguments."""
    found = list(step.operation.variables) if step.is_layer else []
    flat = keras.tree.flatten((step.args, dict(step.kwargs)))
    found += [each for each in flat if isinstance(each, keras.Variable)]
    return list({id(each): each for each in found}.values())
