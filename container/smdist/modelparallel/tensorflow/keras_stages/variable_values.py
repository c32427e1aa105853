# SPDX-License-Identifier: Apache-2.0
"""Values of a split model's variables: equal on all ranks that hold them, and nowhere else.

A variable has a home: the first stage that uses it. Its value on the home's rank of the first
replica is the one that counts. A rank that does not hold a variable keeps a `ReleasedValue` in its
place, without memory.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any, Final

import numpy as np
import tensorflow as tf

from sagemaker_dist.errors import OptionError
from smdist.dataparallel.tensorflow import op_library
from smdist.modelparallel.core.rank_layout import Axis
from smdist.modelparallel.tensorflow.keras_capture.delayed_values import initialize
from smdist.modelparallel.tensorflow.keras_capture.layer_paths import all_variables
from smdist.modelparallel.tensorflow.keras_stages.keras_split import SplitKerasModel

_TAG: Final = 2**31 + 2**30  # tags of values are above those of ties


class ReleasedValue:
    """Value of a variable that other ranks hold.

    Attributes:
        name: Name of the variable.
        holder: World rank that holds it.
        shape: Shape of the variable.
        dtype: Dtype of the variable.
        fetch: Function that returns the value as an array while a checkpoint is written.
        takes: True while a checkpoint is loaded, so that values are dropped.
    """

    def __init__(self, variable: Any, name: str, holder: int) -> None:
        self.name, self.holder = name, holder
        self.shape = tf.TensorShape(variable.shape)
        self.dtype = tf.as_dtype(variable.dtype)
        self.fetch: Callable[[], Any] | None = None
        self.takes = False
        self._unique_id = f"released/{name}"  # Keras's optimizers number variables by it

    def numpy(self) -> Any:
        """Return the value as an array.

        Raises:
            OptionError: No checkpoint is being written.
        """
        if self.fetch is None:
            raise OptionError(
                f"the value of variable {self.name!r} was read",
                f"only rank {self.holder} has it, in another stage of the pipeline",
                "Read it there, as in model.own_values(), or save a checkpoint",
                about=self.name,
                kind="other_stage",
            )
        return self.fetch()

    def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
        found = np.asarray(self.numpy(), dtype=dtype)
        return found.copy() if copy else found

    def __tf_tensor__(self, dtype: Any = None, name: Any = None) -> Any:
        return tf.convert_to_tensor(self.numpy(), dtype=dtype, name=name)

    def stand_in(self) -> Any:
        """Return zeros of the same shape, for code that is traced for the shapes of its results."""
        return tf.zeros(self.shape, self.dtype)

    def assign(self, value: Any) -> None:  # noqa: ARG002  the interface of tf.Variable
        """Drop a value that is loaded; the rank that holds the variable takes it.

        Raises:
            OptionError: No checkpoint is being loaded.
        """
        if not self.takes:
            raise OptionError(
                f"a value was assigned to variable {self.name!r}",
                f"only rank {self.holder} has it, in another stage of the pipeline",
                "Assign values before the first step, or load a checkpoint",
                about=self.name,
                kind="other_stage",
            )


def ranks_of(split: SplitKerasModel, variable: Any, replica: int) -> list[int]:
    """Return the world ranks that hold a variable in a replica, the one of its home first."""
    layout = split.session.layout
    pipeline = layout.members(Axis.PP, layout.rank(pp=0, rdp=replica))
    at = split.plan.actions.rank_of
    stages = split.holders().get(id(variable), (0,))
    return list(dict.fromkeys(pipeline[at[stage]] for stage in stages))


def share_values(split: SplitKerasModel) -> None:
    """Give all ranks that hold a variable the same value; all ranks must call this."""
    me, sends = split.session.rank, []
    for variable in split.own_variables():
        initialize(variable)
    for number, variable in enumerate(all_variables(split.model)):
        source, *others = _all_ranks_of(split, variable)
        if me == source:
            for rank in others:
                value = tf.convert_to_tensor(variable.value)
                sends.append((op_library.start_send(value, rank, _TAG + number), value.dtype))
        elif me in others:
            variable.assign(_received(variable, source, _TAG + number))
    for handle, dtype in sends:
        op_library.wait_send(handle, dtype)


def release_others(split: SplitKerasModel) -> None:
    """Free the memory of all variables that this rank does not hold."""
    own = {id(each) for each in split.own_variables()}
    for variable in all_variables(split.model):
        if id(variable) not in own and not isinstance(variable._value, ReleasedValue):
            name = split.program.variable_names[id(variable)]
            holder = ranks_of(split, variable, split.session.replica)[0]
            variable._value = ReleasedValue(variable, name, holder)


def released(split: SplitKerasModel) -> Iterator[tuple[int, Any, ReleasedValue]]:
    """Yield number, variable and placeholder of each variable that this rank does not hold."""
    for number, variable in enumerate(all_variables(split.model)):
        if isinstance(variable._value, ReleasedValue):
            yield number, variable, variable._value


def num_elements(variable: Any) -> int:
    """Return the number of elements of a variable."""
    return math.prod(variable.shape)


def _all_ranks_of(split: SplitKerasModel, variable: Any) -> list[int]:
    replicas = range(split.session.num_replicas)
    return [rank for replica in replicas for rank in ranks_of(split, variable, replica)]


def _received(variable: Any, source: int, tag: int) -> Any:
    dtype, shape = tf.as_dtype(variable.dtype), list(variable.shape)
    handle = op_library.start_receive(shape, dtype, source, tag)
    return op_library.wait_move(handle, dtype, shape)
