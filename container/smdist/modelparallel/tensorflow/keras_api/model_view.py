# SPDX-License-Identifier: Apache-2.0
"""Layers and variables of a distributed model, as Keras's callbacks and scripts read them.

Layers, summary and number of parameters are those of the whole model, on every rank. Variables are
those of this rank's stages once the model is split, and those of the whole model before.
"""

from __future__ import annotations

import math
from typing import Any

import keras

from smdist.modelparallel.tensorflow.keras_capture.layer_paths import (
    all_variables,
    all_weights,
    trained_variables,
)


class ModelView(keras.Model):  # type: ignore[misc]  # untyped
    """Base of smp.DistributedModel: the layers and variables of the model that it trains."""

    _hidden: dict[str, Any] = {}  # noqa: RUF012  each instance sets its own

    def whole_model(self) -> Any:
        """Return the whole model; this rank trains the variables of its stages alone."""
        found = self._hidden.get("model")  # Keras's loading would never end if it found it here
        return self if found is None else found

    def _of_this_rank(self, variables: list[Any]) -> list[Any]:
        """Return the variables that stages of this rank use; all of them before the split."""
        split = self._hidden.get("split")
        if split is None or self._hidden.get("shows_whole"):
            return variables
        own = {id(each) for each in split.own_variables()}
        return [each for each in variables if id(each) in own]

    @property
    def variables(self) -> list[Any]:
        """Variables of this rank's stages; those of the whole model before the split."""
        return self._of_this_rank(all_variables(self.whole_model()))

    @property
    def weights(self) -> list[Any]:
        """Same as `variables` without the states of random generators.

        `get_weights` and `set_weights` read and assign them, so that each rank of
        EarlyStopping(restore_best_weights=True) keeps the values of its own stages.
        """
        return self._of_this_rank(all_weights(self.whole_model()))

    @property
    def trainable_variables(self) -> list[Any]:
        """Trained variables of this rank's stages; those of the whole model before the split."""
        return self._of_this_rank(trained_variables(self.whole_model()))

    @property
    def trainable_weights(self) -> list[Any]:
        """Same as `trainable_variables`."""
        return self.trainable_variables

    @property
    def non_trainable_variables(self) -> list[Any]:
        """Variables of this rank's stages that gradients do not change."""
        return _others(self.variables, self.trainable_variables)

    @property
    def non_trainable_weights(self) -> list[Any]:
        """Same as `non_trainable_variables` without the states of random generators."""
        return _others(self.weights, self.trainable_variables)

    @property
    def layers(self) -> list[Any]:
        """Layers of the whole model; those of other stages have no values on this rank."""
        return list(self._shown("layers"))

    @property
    def trainable(self) -> bool:
        """True if gradients change the model; a change counts from the next compile() on."""
        return bool(self._shown("trainable"))

    @trainable.setter
    def trainable(self, value: bool) -> None:
        keras.Model.trainable.fset(self.whole_model(), value)

    def count_params(self) -> int:
        """Return the number of elements of all weights of the whole model."""
        return sum(math.prod(each.shape) for each in all_weights(self.whole_model()))

    def summary(self, *args: Any, **kwargs: Any) -> None:
        """Print the layers of the whole model, as `keras.Model.summary`."""
        self._hidden["shows_whole"] = True
        try:
            keras.Model.summary(self.whole_model(), *args, **kwargs)
        finally:
            del self._hidden["shows_whole"]

    def to_json(self, **kwargs: Any) -> str:
        """Return the configuration of the whole model, as `keras.Model.to_json`."""
        return str(keras.Model.to_json(self.whole_model(), **kwargs))

    def _shown(self, name: str) -> Any:
        """Return an attribute of the whole model as its class has it without this view."""
        whole = self.whole_model()
        return getattr(keras.Model, name).fget(self) if whole is self else getattr(whole, name)


def _others(variables: list[Any], without: list[Any]) -> list[Any]:
    known = {id(each) for each in without}
    return [each for each in variables if id(each) not in known]
