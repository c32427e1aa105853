# SPDX-License-Identifier: Apache-2.0
"""States of an elastic training with the names of Horovod's TensorFlow and Keras modules."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from sagemaker_dist.errors import OptionError, raise_all
from smdist.elastic.horovod_run import HorovodMethods, sampler_among
from smdist.elastic.keras_state import KerasState
from smdist.elastic.variables_state import VariablesState


class TensorFlowKerasState(HorovodMethods, KerasState):
    """State of a Keras model and its optimizer, with the names of Horovod.

    Args:
        model: A model that is built.
        optimizer: Its optimizer. Default None: the one of model.compile.
        backend: Must be None: Keras 3 has no sessions.
        values: At most one ElasticSampler, and further values such as `epoch=0`: numbers, texts,
            lists and dicts of these. Each is an attribute of the state.

    Raises:
        OptionError: An argument is wrong.
    """

    def __init__(
        self, model: Any, optimizer: Any = None, backend: Any = None, **values: Any
    ) -> None:
        raise_all(_session_faults(backend=backend))
        sampler, plain = sampler_among(values)
        super().__init__(model, optimizer, sampler=sampler, **plain)
        for name in values:
            if name not in plain and not hasattr(self, name):
                setattr(self, name, values[name])


class HorovodKerasState(TensorFlowKerasState):
    """State of a Keras model and its optimizer: TensorFlowKerasState without `backend`."""

    def __init__(self, model: Any, optimizer: Any = None, **values: Any) -> None:
        super().__init__(model, optimizer, **values)


class TensorFlowState(HorovodMethods, VariablesState):
    """State of a list of variables of TensorFlow, for loops of the script.

    Args:
        variables: The variables of model and optimizer, in the same order on all ranks.
        session: Must be None: TensorFlow 2 runs eagerly.
        values: At most one ElasticSampler, and further values such as `batch=0`: numbers, texts,
            lists and dicts of these. Each is an attribute of the state.

    Raises:
        OptionError: An argument is wrong.
    """

    def __init__(
        self, variables: Iterable[Any] | None = None, session: Any = None, **values: Any
    ) -> None:
        faults = _session_faults(session=session)
        self.variables: list[Any] = list(variables or ())
        if not self.variables:
            faults.append(
                OptionError(
                    f"variables is {variables!r}",
                    "TensorFlow 2 has no list of all variables",
                    "Pass [*model.variables, *optimizer.variables]",
                    about="variables",
                    kind="missing",
                )
            )
        raise_all(faults)
        sampler, plain = sampler_among(values)
        super().__init__(sampler, plain)

    def scale_learning_rate(self, factor: float) -> None:
        """Raise an error: the variables do not tell which of them is a learning rate.

        Raises:
            OptionError: Always.
        """
        raise OptionError(
            f"the learning rate was to be multiplied by {factor}",
            "a TensorFlowState has variables, and none of them is known to be a learning rate",
            "Change the learning rate by state.register_reset_callbacks()",
            about="on_reset",
            kind="unsupported",
        )

    @property
    def _variables(self) -> list[Any]:
        return self.variables


def _session_faults(**given: Any) -> list[OptionError]:
    return [
        OptionError(
            f"{name} is {value!r}",
            "TensorFlow 2 and Keras 3 run without sessions",
            f"Leave {name} out",
            about=name,
            kind="unsupported",
        )
        for name, value in given.items()
        if value is not None
    ]
