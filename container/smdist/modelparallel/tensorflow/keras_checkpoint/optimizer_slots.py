# SPDX-License-Identifier: Apache-2.0
"""Variables of an optimizer, and the model's variables to which its slots belong.

A slot is a variable of the optimizer with the shape of a trained variable, such as a momentum. The
other variables, such as the number of iterations, are equal on all ranks.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from sagemaker_dist.errors import OptionError
from smdist.modelparallel.tensorflow.keras_capture.delayed_values import delay_param_initialization


@dataclass(frozen=True, slots=True)
class OptimizerSlot:
    """Variable of an optimizer for one variable of the model.

    Attributes:
        variable: Variable of the optimizer.
        owner: Variable of the model.
        name: Name of the kind of slot, such as "momentum".
    """

    variable: Any
    owner: Any
    name: str


def build_slots(
    optimizer: Any, variables: Sequence[Any], *, by_shape: bool = False
) -> list[OptimizerSlot]:
    """Build an optimizer for some variables, and return its slots.

    Args:
        optimizer: Optimizer without variables.
        variables: Variables of the model.
        by_shape: True if only the shapes of the variables are known, not their values.
    """
    found: list[OptimizerSlot] = []
    inner = getattr(optimizer, "inner_optimizer", optimizer)
    with _recorded(inner, found, by_shape=by_shape):
        optimizer.build(list(variables))
    _refuse_others(optimizer, found)
    return found


def whole_optimizer(optimizer: Any, variables: Sequence[Any]) -> tuple[Any, list[OptimizerSlot]]:
    """Return an optimizer like another one for all variables of a model, without memory.

    Its variables have no values, so it can be written with values of other ranks, and it shows
    which variable of a file belongs to which variable of the model.
    """
    whole = type(optimizer).from_config(optimizer.get_config())
    with delay_param_initialization():
        slots = build_slots(whole, variables, by_shape=True)
    return whole, slots


def slots_of(optimizer: Any, variables: Sequence[Any]) -> list[OptimizerSlot]:
    """Return the slots of an optimizer for some variables; it is built if it is not yet.

    Args:
        optimizer: Optimizer of these variables alone.
        variables: Trained variables of this rank, in the order in which the optimizer has them.

    Raises:
        OptionError: The optimizer was built for other variables.
    """
    if not optimizer.built:
        return build_slots(optimizer, variables)
    like, slots = whole_optimizer(optimizer, variables)
    if [each.shape for each in like.variables] != [each.shape for each in optimizer.variables]:
        raise OptionError(
            f"the optimizer {optimizer.name!r} has {len(optimizer.variables)} variables",
            f"for the {len(variables)} trained variables of this rank it has {len(like.variables)}",
            "Pass the optimizer that updates model.trainable_variables",
            about="optimizer",
            kind="conflict",
        )
    at = {id(each): number for number, each in enumerate(like.variables)}
    return [
        OptimizerSlot(optimizer.variables[at[id(slot.variable)]], slot.owner, slot.name)
        for slot in slots
    ]


def shared_variables(optimizer: Any, slots: Sequence[OptimizerSlot]) -> list[Any]:
    """Return the variables of an optimizer that are not slots, such as its iterations."""
    own = {id(slot.variable) for slot in slots}
    return [each for each in optimizer.variables if id(each) not in own]


@contextmanager
def _recorded(optimizer: Any, found: list[OptimizerSlot], *, by_shape: bool) -> Iterator[None]:
    """Record the slots that an optimizer adds within this context."""
    add = optimizer.add_variable_from_reference

    def recorded(reference_variable: Any, name: Any = None, initializer: Any = "zeros") -> Any:
        if by_shape:  # Keras would place the slot on the device of the value
            variable = optimizer.add_variable(
                shape=reference_variable.shape, initializer=initializer,
                dtype=reference_variable.dtype, name=f"{reference_variable.name}_{name}",
            )  # fmt: skip
        else:
            variable = add(reference_variable, name=name, initializer=initializer)
        found.append(OptimizerSlot(variable, reference_variable, str(name or "var")))
        return variable

    object.__setattr__(optimizer, "add_variable_from_reference", recorded)
    try:
        yield
    finally:
        object.__delattr__(optimizer, "add_variable_from_reference")


def _refuse_others(optimizer: Any, slots: Sequence[OptimizerSlot]) -> None:
    """Check that every variable with axes is a slot."""
    for each in shared_variables(optimizer, slots):
        if len(each.shape):
            raise OptionError(
                f"the optimizer {optimizer.name!r} has the variable {each.path!r} of shape"
                f" {tuple(each.shape)}",
                "only variables with the shape of a weight, and numbers, can be divided over"
                " stages",
                "Use another optimizer, such as Adam or SGD",
                about="optimizer",
                kind="unsupported",
            )
