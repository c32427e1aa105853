# SPDX-License-Identifier: Apache-2.0
"""One rank's variables to all ranks, several in one message."""

from __future__ import annotations

from collections.abc import Sequence
from numbers import Integral
from typing import Any, Final

from sagemaker_dist.errors import OptionError, require
from smdist.dataparallel.tensorflow import omissions, rows, world
from smdist.dataparallel.tensorflow.agreement import mark_of, names_of
from smdist.dataparallel.tensorflow.buckets import Piece, pack
from smdist.dataparallel.tensorflow.differences import (
    Description,
    describe,
    difference_between_ranks,
)
from smdist.dataparallel.tensorflow.library import as_written, tf
from smdist.dataparallel.tensorflow.options import fusion_bytes
from smdist.dataparallel.tensorflow.reduce_op import ReduceOp
from smdist.dataparallel.tensorflow.reducing import Reduction, all_reduce

_DIFFER: Final = (
    "broadcast_variables(): shapes, dtypes, names or order of variables differ between ranks."
)
_ALIKE: Final = "Build the same model and optimizer on all ranks"


@as_written
def broadcast_variables(variables: Any, root_rank: int = 0) -> None:
    """Give every rank's variables the values they have on `root_rank`.

    The states of Keras's seed generators stay each rank's own, so that dropout differs
    between ranks; assign broadcast(state, root_rank) to one that should not.

    Args:
        variables: tf.Variables and Keras variables, in lists, tuples or dicts as deep as
            you like; a function that returns them is called.

    Raises:
        OptionError: Something is no variable, or its shape is not known, or there is no
            such rank.
        tf.errors.InvalidArgumentError: Ranks brought other variables: by shapes, dtypes,
            names or order.
    """
    is_function = callable(variables) and not hasattr(variables, "variables")  # no model
    every = tf.nest.flatten(variables() if is_function else variables)
    given = [each for each in every if not _is_seed(_variable(each))]
    flat = [_variable(each) for each in given]
    check_root(root_rank)
    if world.size() == 1 or not flat:
        return
    if any(getattr(each, "name", "") == "iteration" for each in given):  # an optimizer's count
        omissions.note(omissions.OPTIMIZER)
    _agree(given, flat)
    pieces = [
        Piece(dtype=each.dtype.name, size_bytes=each.shape.num_elements() * each.dtype.size)
        for each in flat
    ]
    for bucket in pack(pieces, fusion_bytes()):
        _broadcast_bucket([flat[number] for number in bucket], root_rank)


def check_root(root_rank: Any) -> None:
    """Refuse a rank that there is not.

    Raises:
        OptionError: It is no rank of this job.
    """
    is_number = not isinstance(root_rank, bool) and isinstance(root_rank, Integral)
    require(
        is_number and 0 <= int(root_rank) < world.size(),
        what=f"root_rank is {root_rank!r}",
        why=f"ranks of this job are 0 to {world.size() - 1}",
        mend="Pass one of them",
    )


def _variable(each: Any) -> Any:
    inner = getattr(each, "value", None)
    variable = inner if isinstance(inner, tf.Variable) else each  # a Keras variable holds one
    if isinstance(variable, tf.Variable):
        require(
            variable.shape.is_fully_defined(),
            what=f"broadcast_variables() got {variable.name!r} of shape {variable.shape}",
            why="variables travel packed by their sizes, and this one's is not known",
            mend="Assign broadcast(variable, root_rank) to it",
        )
        return variable
    raise OptionError(
        f"broadcast_variables() got {each!r}",
        "it sets variables in place, and this is none",
        "Pass model.variables or optimizer.variables, or use broadcast() for a tensor",
    )


def _is_seed(variable: Any) -> bool:
    name = str(variable.name).partition(":")[0].rpartition("/")[-1]
    return name == "seed_generator_state" and variable.dtype.is_integer


def _agree(given: Sequence[Any], variables: Sequence[Any]) -> None:
    description = describe(given, variables, names_of(given, is_brief=True))
    mine = tf.constant([_mark_of(description)], tf.int64)
    low, high = all_reduce([mine, -mine], Reduction(op=ReduceOp.MIN))
    if not tf.executing_eagerly():
        tf.debugging.Assert(tf.reduce_all(low == -high), [f"{_DIFFER} {_ALIKE}"])
    elif int(low[0]) != -int(high[0]):
        told = f"broadcast_variables(): {difference_between_ranks(description)}. {_ALIKE}"
        raise tf.errors.InvalidArgumentError(None, None, told)


def _mark_of(description: Description) -> int:
    kinds = [kind for _, kind, _ in description]
    return mark_of(";".join([*kinds, *(name for _, _, name in description)]))


def _broadcast_bucket(variables: list[Any], root: int) -> None:
    packed = tf.concat([tf.reshape(each, [-1]) for each in variables], axis=0)
    values = tf.split(
        rows.broadcast(packed, root), [each.shape.num_elements() for each in variables]
    )
    for variable, value in zip(variables, values, strict=True):
        variable.assign(tf.reshape(value, variable.shape))
