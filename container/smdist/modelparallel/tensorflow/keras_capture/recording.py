# SPDX-License-Identifier: Apache-2.0
"""Recording of the calls of layers and operations while a Keras model runs symbolically.

Keras itself records calls as nodes of a graph, but only those whose arguments are symbolic, and it
evaluates the rest at once. Within `Recording.active`, also a layer that is called with constants
(positions, a class token) and an operation on a variable (the transpose of an embedding) are
recorded, so that their gradients are not lost. The layers within a layer are not recorded: it is
a unit.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any
from unittest.mock import patch

import keras
import tensorflow as tf

from sagemaker_dist.errors import OptionError

_OPS = "keras.src.ops."


@dataclass(slots=True)
class RecordedCall:
    """Call that was recorded: operation, arguments with symbolic tensors, and flat results."""

    operation: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    outputs: list[Any]
    parent: str


@dataclass(slots=True)
class Recording:
    """Calls of layers and operations in one symbolic run of a model.

    Attributes:
        is_open: Function that tells of a layer whether the layers within it are recorded in place
            of the layer itself.
        path_of: Function that returns the path of a layer in the model.
        calls: Calls in order.
        losses: Symbolic scalars passed to add_loss().
        read: Variables whose value was read outside of layers and operations.
        refused: Name of a layer that does not take its input, and its reason; None for no layer.
    """

    is_open: Callable[[Any], bool]
    path_of: Callable[[Any], str]
    calls: list[RecordedCall] = field(default_factory=list)
    losses: list[Any] = field(default_factory=list)
    read: list[Any] = field(default_factory=list)
    refused: tuple[str, str] | None = None
    _parents: list[str] = field(default_factory=lambda: [""])
    _given: list[frozenset[str]] = field(default_factory=list)
    _opened: list[Any] = field(default_factory=list)
    _depth: int = 0

    @contextmanager
    def active(self) -> Iterator[None]:
        """Record within this context; afterwards the model has no trace of the run."""
        with ExitStack() as stack:
            for each in (*self._call_patches(), *self._state_patches()):
                stack.enter_context(each)
            try:
                yield
            finally:
                self._forget()

    def _call_patches(self) -> Iterator[Any]:
        """Yield patches that record the calls of layers and operations."""
        operation_class, recording = keras.Operation, self
        call, symbolic = operation_class.__call__, operation_class.symbolic_call
        layer_call, check = keras.Layer.__call__, keras.Layer._assert_input_compatibility

        def patched_call(operation: Any, *args: Any, **kwargs: Any) -> Any:
            if not recording._is_outermost() or not isinstance(operation, keras.Layer):
                return call(operation, *args, **kwargs)
            return recording._layer(operation, args, kwargs)

        def patched_layer_call(layer: Any, *args: Any, **kwargs: Any) -> Any:
            recording._given.append(frozenset(kwargs))
            try:
                return layer_call(layer, *args, **kwargs)
            finally:
                recording._given.pop()

        def patched_symbolic(operation: Any, *args: Any, **kwargs: Any) -> Any:
            with recording._within():
                outputs = symbolic(operation, *args, **kwargs)
            if recording._is_outermost():
                recording._add(operation, args, kwargs, outputs)
            return outputs

        def patched_check(layer: Any, inputs: Any) -> None:
            try:
                check(layer, inputs)
            except ValueError as error:
                recording.refused = (str(layer.name), str(error))
                raise

        yield patch.object(keras.Layer, "_assert_input_compatibility", patched_check)
        yield patch.object(operation_class, "__call__", patched_call)
        yield patch.object(keras.Layer, "__call__", patched_layer_call)
        yield patch.object(operation_class, "symbolic_call", patched_symbolic)
        for module, test in _tests_of_symbols():
            yield patch.object(module, "any_symbolic_tensors", self._test(test))

    def _state_patches(self) -> Iterator[Any]:
        """Yield patches that record losses, and variables whose values are read."""
        add_loss, value, recording = keras.Layer.add_loss, keras.Variable.value, self

        def patched_add_loss(layer: Any, loss: Any) -> None:
            if not any(map(_is_symbolic, keras.tree.flatten(loss))):
                add_loss(layer, loss)
            else:
                recording.losses.extend(keras.tree.flatten(loss))

        def patched_value(variable: Any) -> Any:
            if recording._is_outermost():
                recording.read.append(variable)
            elif hasattr(variable._value, "stand_in"):  # another rank has the value
                return variable._maybe_autocast(variable._value.stand_in())
            return value.fget(variable)

        yield patch.object(keras.Layer, "add_loss", patched_add_loss)
        yield patch.object(keras.Variable, "value", property(patched_value))

    def _test(self, test: Callable[..., bool]) -> Callable[..., bool]:
        def is_symbolic(args: Any = None, kwargs: Any = None) -> bool:
            if test(args, kwargs):
                return True
            if not self._is_outermost():
                return False
            flat = keras.tree.flatten([args or (), list((kwargs or {}).values())])
            return any(isinstance(each, keras.Variable) for each in flat)

        return is_symbolic

    def _is_outermost(self) -> bool:
        """Tell whether this is code of an open model, rather than code within a unit."""
        return self._depth == 0 and tf.executing_eagerly()

    @contextmanager
    def _within(self) -> Iterator[None]:
        self._depth += 1
        try:
            yield
        finally:
            self._depth -= 1

    def _layer(self, layer: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if self.is_open(layer):
            self._opened.append(layer)
            self._parents.append(self.path_of(layer))
            try:
                return layer.call(*args, **kwargs)
            finally:
                self._parents.pop()
        with self._within():
            outputs = layer.symbolic_call(*args, **kwargs)
        given = self._given[-1]
        passed = {k: v for k, v in kwargs.items() if k in given or not k.endswith("mask")}
        self._add(layer, args, passed, outputs)
        return outputs

    def _add(self, operation: Any, args: Any, kwargs: Any, outputs: Any) -> None:
        flat = keras.tree.flatten(outputs)
        strange = [type(each).__name__ for each in flat if not _is_symbolic(each)]
        if strange:
            raise OptionError(
                f"{operation.name!r} returns {strange[0]}",
                "a layer or operation between stages returns tensors only",
                "Return tensors, or do this inside of one layer",
                about=operation.name,
                kind="not_a_tensor",
            )
        self.calls.append(
            RecordedCall(operation, args, dict(kwargs), flat, parent=self._parents[-1])
        )

    def _forget(self) -> None:
        """Remove the nodes that Keras added to layers and operations during the run."""
        new = {id(each) for call in self.calls for each in call.outputs}
        touched = [source for call in self.calls for source in (call.operation, *_sources(call))]
        for operation in {id(each): each for each in [*touched, *self._opened]}.values():
            for nodes in (operation._inbound_nodes, operation._outbound_nodes):
                nodes[:] = [node for node in nodes if not _is_of_run(node, new)]


def _is_symbolic(value: Any) -> bool:
    return isinstance(value, keras.KerasTensor)


def _sources(call: RecordedCall) -> Iterator[Any]:
    """Yield the operations that computed the arguments of a call."""
    for each in keras.tree.flatten((call.args, call.kwargs)):
        history = getattr(each, "_keras_history", None)
        if _is_symbolic(each) and history is not None and history.operation is not None:
            yield history.operation


def _is_of_run(node: Any, new: set[int]) -> bool:
    return any(id(each) in new for each in node.outputs)


def _tests_of_symbols() -> Iterator[tuple[Any, Callable[..., bool]]]:
    """Yield the modules of Keras's operations that choose between symbolic and real execution."""
    for name, module in list(sys.modules.items()):
        if name.startswith(_OPS) and hasattr(module, "any_symbolic_tensors"):
            yield module, module.any_symbolic_tensors
