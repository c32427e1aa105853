# SPDX-License-Identifier: Apache-2.0
"""Variables that each rank trains by itself: their gradients are not reduced over ranks."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from smdist.dataparallel.tensorflow import basics
from smdist.dataparallel.tensorflow.op_library import tf


class LocalSources:
    """Set of local variables, and the division of their gradients by the number of ranks.

    Args:
        scale_gradients: True to divide local gradients by the number of ranks, as an average over
            ranks does with the others.
    """

    def __init__(self, scale_gradients: bool = True) -> None:
        self._scale_gradients = scale_gradients
        self._known: set[Any] = set()

    def add(self, variable: Any) -> None:
        """Declare a tf.Variable or a Keras variable as local."""
        self._known.add(_key(variable))

    def add_layers(self, layers: Any) -> None:
        """Declare the trainable variables of Keras layers as local; one layer, several, or None."""
        every = [] if layers is None else layers if isinstance(layers, Iterable) else [layers]
        for layer in every:
            for variable in layer.trainable_variables:
                self.add(variable)

    def has(self, variable: Any) -> bool:
        """Return True if the variable was declared as local."""
        return _key(variable) in self._known

    def reduce(
        self,
        gradients: Sequence[Any],
        sources: Sequence[Any],
        reduce: Callable[[list[Any], list[Any]], list[Any]],
    ) -> list[Any]:
        """Return the gradients in their order: local ones scaled, the others after `reduce`.

        Args:
            gradients: Gradients; None for a variable without one.
            sources: The variable of each gradient.
            reduce: Function that reduces gradients, given them and their variables.
        """
        if not self._known:
            return reduce(list(gradients), list(sources))
        is_local = [self.has(source) for source in sources]
        pairs = list(zip(gradients, sources, is_local, strict=True))
        shared = [(gradient, source) for gradient, source, local in pairs if not local]
        reduced = iter(reduce([each for each, _ in shared], [source for _, source in shared]))
        return [self._scaled(gradient) if local else next(reduced) for gradient, _, local in pairs]

    def _scaled(self, gradient: Any) -> Any:
        if gradient is None or not self._scale_gradients:
            return gradient
        size = basics.size()
        if isinstance(gradient, tf.IndexedSlices):
            values = gradient.values / tf.cast(size, gradient.dtype)
            return tf.IndexedSlices(values, gradient.indices, gradient.dense_shape)
        return gradient / tf.cast(size, gradient.dtype)


def _key(variable: Any) -> Any:
    """Return what identifies a variable; a Keras variable is the tf.Variable that it wraps."""
    inner = getattr(variable, "value", None)
    found = inner if isinstance(inner, tf.Variable) else variable
    return found.ref() if hasattr(found, "ref") else id(found)
